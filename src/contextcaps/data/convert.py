"""Any source to tar shards, which `shards:FOLDER/*.tar` reads back as the same samples in the same order."""

import errno
import io
import json
import os
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

from contextcaps.data.problems import DataError, Problems
from contextcaps.data.shard_format import (
    CLASSES_FILE,
    JSON_SUFFIX,
    MASK_SUFFIX,
    encode_annotation,
    encode_image,
    encode_mask,
    member_stem,
)
from contextcaps.data.source import Source
from contextcaps.data.vocabulary import read_classes

__all__ = ["write_shards"]

_NO_SPLIT = "all"
Member = tuple[str, bytes]
"""A member's name and content."""


def write_shards(
    source: Source,
    folder: str | os.PathLike[str],
    *,
    split: str | None = None,
    samples_per_shard: int = 1000,
    progress: Callable[[int, int], None] | None = None,
) -> list[Path]:
    """Write a source's samples to FOLDER/SPLIT-00000.tar, SPLIT-00001.tar and so on, and its classes to classes.json.

    Nothing is lost: JPEG, PNG and WebP files are copied byte by byte, pixels and other formats become PNG, ids, labels,
    boxes (to `BOX_DECIMALS` decimals) and masks are kept. The same source gives the same bytes. All shards are written
    under a name beginning with a dot, and get their own names once all are complete; if anything fails, none is left.

    Args:
        source: where the samples come from. An image that cannot be read is a problem: with on_bad="stop" all are
            named and nothing is written; with "skip" they are left out and added to `source.problems`.
        folder: new, empty, or with the shards of other splits of the same classes.
        split: how the shards' names begin; None is the source's own split, or "all".
        samples_per_shard: samples in each shard, fewer in the last.
        progress: called with the number of samples done and that of all, after each sample.

    Returns:
        The shards' paths.
    """
    folder = Path(folder)
    name = split or source.split or _NO_SPLIT
    if not re.fullmatch(r"\w[\w-]*", name):
        raise DataError(f"split {name!r}: expected letters, digits, - and _ only, since files are named after it")
    if samples_per_shard < 1:
        raise DataError(f"samples_per_shard: expected at least 1, got {samples_per_shard}")
    _check_folder(folder, name, source.classes)
    is_new = not folder.exists()
    partial = folder / f".{name}.partial"
    problems = Problems(source.name, source.problems.on_bad)
    try:
        partial.mkdir(parents=True)
        try:
            samples = _encode_all(source, problems, progress)
            shards = _write_all(samples, partial, name, samples_per_shard)
            problems.settle()
            if not shards:
                raise DataError(f"{source.name}: no usable image found; {problems.summary()}")
            _write(partial / CLASSES_FILE, json.dumps(list(source.classes), indent=0).encode("ascii") + b"\n")
            for path in (partial / CLASSES_FILE, *shards):
                os.replace(path, folder / path.name)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    except FileExistsError:
        raise DataError(f"{partial}: a conversion is under way there or was cut off; if none is, delete it") from None
    except OSError as error:
        _forget(folder, is_new)
        why = "the disk is full" if error.errno == errno.ENOSPC else error.strerror
        raise DataError(f"{folder}: the shards cannot be written: {why}; none of them is left behind") from None
    except BaseException:
        _forget(folder, is_new)
        raise
    source.problems.found += problems.found
    return [folder / path.name for path in shards]


def _check_folder(folder: Path, name: str, classes: tuple[str, ...]) -> None:
    """Refuse a folder with anything in it but other splits' shards of the same classes."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise DataError(f"{folder}: expected a folder, or nothing, to write shards to")
    for path in sorted(folder.iterdir()):
        is_shard = path.suffix == ".tar" and name != _NO_SPLIT and re.sub(r"-\d+$", "", path.stem) != name
        is_partial = path.name.startswith(".") and path.suffix == ".partial"
        if path.name == CLASSES_FILE:
            if read_classes(path) != classes:
                raise DataError(f"{path}: lists other classes than the source; choose a new or empty folder")
        elif not is_shard and not is_partial:
            raise DataError(f"{folder}: not empty (it has {path.name}); choose a new or empty folder")


def _encode_all(
    source: Source, problems: Problems, progress: Callable[[int, int], None] | None
) -> Iterator[list[Member]]:
    """The members of each sample that can be read."""
    for index in range(len(source)):
        try:
            members = _encode(source, index)
        except (DataError, OSError) as error:
            problems.add(f"sample {index}", str(error))
        else:
            yield members
        if progress is not None:
            progress(index + 1, len(source))


def _encode(source: Source, index: int) -> list[Member]:
    sample = source.sample(index)
    stem = member_stem(sample.id)
    try:
        suffix, image = encode_image(sample.image)
        members = [(stem + suffix, image), (stem + JSON_SUFFIX, encode_annotation(sample, source.classes))]
        if sample.mask is not None:
            members.append((stem + MASK_SUFFIX, encode_mask(sample.mask())))
    except (DataError, OSError) as error:
        raise DataError(f"{sample.id}: {error}") from None
    return members


def _write_all(samples: Iterator[list[Member]], folder: Path, name: str, samples_per_shard: int) -> list[Path]:
    """Write samples to shards in a folder, each as long as asked for but the last."""
    shards: list[Path] = []
    first = next(samples, None)
    while first is not None:
        path = folder / f"{name}-{len(shards):05d}.tar"
        with path.open("wb") as file:
            with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as tar:
                _add(tar, first)
                for _ in range(samples_per_shard - 1):
                    members = next(samples, None)
                    if members is None:
                        break
                    _add(tar, members)
            file.flush()
            os.fsync(file.fileno())
        shards.append(path)
        first = next(samples, None)
    return shards


def _add(tar: tarfile.TarFile, members: list[Member]) -> None:
    for name, content in members:
        info = tarfile.TarInfo(name)  # its defaults: time, user and group 0, mode 644
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _forget(folder: Path, is_new: bool) -> None:
    """Remove the folder that a failed conversion made."""
    if is_new and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
