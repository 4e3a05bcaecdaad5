"""Read Hugging Face `datasets` by name (`hf:NAME`) or from a folder (`hf:FOLDER`); needs the extra `hf`.

A folder is one written by `save_to_disk`, or one of Parquet files (a split's name begins its files' names, or is that
of the folder they are in). The `datasets` package writes an Arrow copy of Parquet files, which goes into the cache
folder of contextcaps. That package fetches a name into its own cache. No data set's own code is ever run: data sets
that need it are refused.
"""

import contextlib
import inspect
import os
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from contextcaps.data.cache import cache_folder
from contextcaps.data.file_source import check_access
from contextcaps.data.problems import DataError, OnBad
from contextcaps.data.sample import Sample
from contextcaps.data.source import Source, Unlabelled
from contextcaps.data.vocabulary import Vocabulary, canonical_split

__all__ = ["HFSource"]

_IMAGE_NAMES = ("image", "img", "picture", "photo")
_LABEL_NAMES = ("labels", "label", "tags", "classes", "objects")
_NO_SPLIT = "all"
"""Name for the split of a data set that was saved without one."""


class HFSource(Source):
    """Gives a data set with a column of images and one of labels; ids are "train-00000000" and so on.

    Args:
        location: the name of a data set, such as "owner/name", or a folder.
        split: one of the data set's splits; None opens all, in their order.
        config: the data set's configuration, where it has several.
        image_column: None looks for the column of images.
        label_column: labels as ClassLabel or text, one or a list of them; None looks for a usual name.
        unlabelled: an image without a label is a problem ("refuse"), left out ("drop") or kept ("keep").
        unify: labels of text that differ only in case or white space are one class.
    """

    kind = "hf"

    def __init__(
        self,
        location: str,
        *,
        on_bad: OnBad = "stop",
        split: str | None = None,
        config: str | None = None,
        image_column: str | None = None,
        label_column: str | None = None,
        unlabelled: Unlabelled = "refuse",
        unify: bool = True,
    ) -> None:
        super().__init__(f"hf:{location}", on_bad, unlabelled)
        datasets = _import_datasets(self.name)
        self._folder = Path(location).expanduser() if _is_local(location) else None
        parts = _open_folder(datasets, self._folder) if self._folder else _open_name(datasets, location, config)
        self.splits = tuple(part for part in parts if part != _NO_SPLIT)
        self._choose_split(split)
        features = next(iter(parts.values())).features
        images = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
        images += [name for name in _IMAGE_NAMES if name in features]
        self._image_column = self._find_column(features, "image_column", image_column, images)
        labels = [name for name in _LABEL_NAMES if name in features and _is_label(features[name])]
        labels += [name for name, feature in features.items() if _class_names(feature) is not None]
        label_column = self._find_column(features, "label_column", label_column, labels)
        own = [str(self._folder)] if self._folder else _own_caches(datasets)
        self._roots = [os.path.realpath(folder) for folder in own]
        self.root = self._roots[0] if self._folder else location
        names = _class_names(features[label_column])
        self._vocabulary = Vocabulary(names, f"column {label_column!r}", unify)
        self._fingerprints = [f"{part} {rows._fingerprint}" for part, rows in parts.items()]
        self._parts = {
            part: rows.cast_column(self._image_column, datasets.Image(decode=False)) for part, rows in parts.items()
        }
        self._places: list[tuple[str, int]] = []
        self._labels: list[tuple[int, ...]] = []
        for part, rows in self._parts.items():
            self._index(part, rows, label_column)
        self._options = f"{image_column} {label_column} {unlabelled} {on_bad}"
        self.classes, final = self._vocabulary.final()
        self.assumptions += self._vocabulary.assumptions()
        self._labels = [tuple(sorted({int(final[label]) for label in labels})) for labels in self._labels]
        self._settle()

    def _index(self, part: str, rows: Any, label_column: str) -> None:
        """Index a split's rows; of a split that was not asked for, only the names of its labels."""
        wanted = self.split in (None, part)
        if not wanted and self._vocabulary.given:
            return
        images = _image_cells(rows, self._image_column) if wanted else []
        for row, cell in enumerate(rows.select_columns([label_column])[:][label_column]):
            try:
                labels = self._vocabulary.add(_as_list(cell))
                if not wanted:
                    continue
                length, path = images[row]
                if length is None and path:
                    self._file(path)
                elif not length:
                    raise DataError("the image is missing or empty (0 bytes)")
                if self._keeps(labels):
                    self._places.append((part, row))
                    self._labels.append(tuple(labels))
            except DataError as error:
                self.problems.add(_identifier(part, row), str(error))

    def _find_column(self, features: Any, option: str, asked: str | None, found: list[str]) -> str:
        """Return the column asked for, or else the first found; raise if there is none or it will not do."""
        if asked is None and not found:
            looked = f", looked for {', '.join(_LABEL_NAMES)}" if option == "label_column" else ""
            raise DataError(
                f"{self.name}: no column of {option.removesuffix('_column')}s{looked}; the columns are "
                f"{', '.join(features)}; name one: {option}=NAME"
            )
        name = found[0] if asked is None else asked
        if name not in features:
            raise DataError(f"{self.name}: {option}: no column {name!r}; it has {', '.join(features)}")
        if option == "label_column" and not _is_label(features[name]):
            raise DataError(f"{self.name}: {option}: expected ClassLabel or text, or lists of it, got {features[name]}")
        return name

    def __len__(self) -> int:
        return len(self._places)

    def id_of(self, index: int) -> str:
        return _identifier(*self._places[index])

    def labels_of(self, index: int) -> tuple[int, ...]:
        return self._labels[index]

    def sample(self, index: int) -> Sample:
        part, row = self._places[index]
        try:
            cell = self._parts[part][row][self._image_column]
        except (OSError, ValueError) as error:  # Arrow's errors among them
            raise DataError(f"{self.name}: {_identifier(part, row)} cannot be read: {_first_line(error)}") from None
        return Sample(_identifier(part, row), cell["bytes"] or self._file(cell["path"]), self._labels[index])

    def _file(self, path: str) -> Path:
        """Return the file that a row names instead of holding its bytes; refuse files outside of the data set."""
        found = os.path.realpath(os.path.join(self._roots[0], path))
        if not any(found.startswith(root + os.sep) for root in self._roots):
            raise DataError(f"the file {path!r} is outside of the data set")
        if not os.path.isfile(found):
            raise DataError(f"the file {path!r} is missing")
        return Path(found)

    def _identity(self) -> Iterator[str]:
        yield self._options
        if self._folder is None:
            yield from self._fingerprints
        else:
            for path in sorted(path for path in self._folder.rglob("*") if path.is_file()):
                found = path.stat()
                yield f"{path.relative_to(self._folder).as_posix()} {found.st_size} {found.st_mtime_ns}"


def _identifier(part: str, row: int) -> str:
    return f"{part}-{row:08d}"


def _import_datasets(name: str) -> ModuleType:
    try:
        import datasets
    except ImportError:
        raise DataError(f"{name}: needs the package datasets: pip install 'contextcaps[hf]'") from None
    return datasets


def _is_local(location: str) -> bool:
    """Return whether a location is meant as a folder: it is one, or is written like one."""
    return os.path.isdir(os.path.expanduser(location)) or location.startswith((".", "/", "~"))


def _own_caches(datasets: ModuleType) -> list[str]:
    """Return the folders in which `datasets` keeps what it fetched."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return [str(datasets.config.HF_DATASETS_CACHE), HF_HUB_CACHE]


@contextlib.contextmanager
def _without_bars(datasets: ModuleType) -> Iterator[None]:
    """Hide the progress bars of `datasets`, which would stand between a command's own lines."""
    shown = not datasets.utils.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()


def _check_readable(folder: Path) -> None:
    """Raise for a folder with a part that may not be read; `datasets` would pass over it, or not name it."""

    def refuse(error: OSError) -> None:
        if isinstance(error, PermissionError):
            raise DataError(f"hf:{folder}: {error.filename} cannot be read ({error.strerror}); mend its permissions")

    check_access(f"hf:{folder}", folder)
    try:
        for here, _, names in os.walk(folder, onerror=refuse):
            data = [name for name in names if name.endswith((".parquet", ".arrow", ".json"))]
            check_access(f"hf:{folder}", Path(here), *(Path(here) / name for name in data))
    except RecursionError:
        raise DataError(f"hf:{folder}: folders nested too deeply; expected a folder that datasets has saved") from None


def _open_folder(datasets: ModuleType, folder: Path) -> dict[str, Any]:
    """Open a folder: split → rows."""
    _check_readable(folder)
    if not folder.is_dir():
        raise DataError(f"hf:{folder}: no such folder")
    try:
        if (folder / "dataset_dict.json").exists():
            return dict(datasets.load_from_disk(str(folder)))
        if (folder / "state.json").exists():
            rows = datasets.load_from_disk(str(folder))
            return {str(rows.split) if rows.split is not None else _NO_SPLIT: rows}
        files: dict[str, list[str]] = {}
        for path in sorted(folder.rglob("*.parquet")):
            files.setdefault(_split_of(path, folder), []).append(str(path))
        if files:
            with _without_bars(datasets):
                copies = str(cache_folder() / "datasets")
                return dict(datasets.load_dataset("parquet", data_files=files, cache_dir=copies))
    except Exception as error:  # of many kinds, from three packages below
        raise DataError(f"hf:{folder}: cannot be read, cut off or damaged: {_first_line(error)}") from None
    raise DataError(f"hf:{folder}: expected a folder written by save_to_disk, or one with .parquet files")


def _split_of(path: Path, folder: Path) -> str:
    """Return the split in a Parquet file's name or folder; "train" where there is none, as in `datasets`."""
    words = [re.split(r"[-_.]", path.name)[0], *path.relative_to(folder).parts[:-1]]
    return next((word for word in words if canonical_split(word) is not None), "train")


def _open_name(datasets: ModuleType, name: str, config: str | None) -> dict[str, Any]:
    """Open a data set by its name: split → rows."""
    # Versions before 4 can run code that comes with a data set.
    has_code = "trust_remote_code" in inspect.signature(datasets.load_dataset).parameters
    try:
        return dict(datasets.load_dataset(name, config, **({"trust_remote_code": False} if has_code else {})))
    except Exception as error:  # of many kinds, from the network up
        raise DataError(
            f"hf:{name}: the data set cannot be had: {_first_line(error)}; check the name and the network, or save it "
            "with save_to_disk and give the folder"
        ) from None


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _inner(feature: Any) -> Any:
    """Return the feature of a list's elements, or the feature itself if it is no list."""
    if isinstance(feature, list) and len(feature) == 1:
        return feature[0]
    return getattr(feature, "feature", feature)


def _class_names(feature: Any) -> list[str] | None:
    """Return the names of a ClassLabel or a list of them; None for other features."""
    names = getattr(_inner(feature), "names", None)
    return list(names) if names is not None else None


def _is_label(feature: Any) -> bool:
    return _class_names(feature) is not None or getattr(_inner(feature), "dtype", None) in ("string", "large_string")


def _as_list(cell: Any) -> list[Any]:
    """Return a cell's labels; -1 stands for none in data sets whose labels are kept secret."""
    labels = cell if isinstance(cell, list) else [cell]
    return [label for label in labels if label is not None and label != -1 and label != ""]


def _image_cells(rows: Any, column: str) -> list[tuple[int | None, str | None]]:
    """Return the length in bytes of each row's image, without reading it, and the path of its file; or None."""
    import pyarrow.compute

    cells = rows.select_columns([column]).with_format("arrow")
    found: list[tuple[int | None, str | None]] = []
    for start in range(0, len(rows), 1000):
        batch = cells[start : start + 1000].column(column)
        lengths = pyarrow.compute.binary_length(pyarrow.compute.struct_field(batch, "bytes"))
        paths = pyarrow.compute.struct_field(batch, "path")
        found += zip(lengths.to_pylist(), paths.to_pylist(), strict=True)
    return found
