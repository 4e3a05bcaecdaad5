"""Find and read the file that describes a YOLO data set: data.yaml, or classes.txt in its place."""

import dataclasses
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from contextcaps.data.file_source import BadSample, Folder
from contextcaps.data.image_files import is_clutter
from contextcaps.data.problems import DataError
from contextcaps.data.vocabulary import canonical_split, read_classes
from contextcaps.plain_files import NotPlain, read_text, require_plain
from contextcaps.yaml_files import parse_yaml

__all__ = ["Description", "find_description", "find_from_end", "find_yaml"]

_YAML_NAMES = ("data.yaml", "data.yml", "dataset.yaml", "dataset.yml")
_CLASS_FILES = ("classes.txt", "labels/classes.txt", "obj.names")


@dataclasses.dataclass(frozen=True)
class Description:
    """Says what a data set's classes are, and where its images lie."""

    root: Path
    """The folder that everything lies in."""
    classes: tuple[str, ...]
    parts: dict[str, list[Path]]
    """Split → folders of images and lists of them; the split is "" where there is none."""
    has_keypoints: bool
    """Whether a box in a line is followed by key points, so that it is no outline."""
    notes: list[str]


def find_yaml(folder: Path) -> Path | None:
    """Return the YAML file in a folder that names classes: data.yaml, or the only one."""
    names = [name for name in _YAML_NAMES if (folder / name).is_file()]
    if not names:
        with os.scandir(folder) as entries:
            found = sorted(each.name for each in entries if each.name.lower().endswith((".yaml", ".yml")))
        names = [name for name in found if not is_clutter(name) and b"names:" in _head(folder / name)]
        names = names if len(names) == 1 else []
    return folder / names[0] if names else None


def find_description(name: str, location: Path, root: Path | None) -> Description:
    """Return the description at a location, which is a YAML file or a folder.

    Args:
        name: the source's name, for messages.
        location: the file, or the folder that holds it.
        root: the folder that paths in it are relative to, if it is not to decide itself.
    """
    if location.is_dir():
        file = find_yaml(location)
        return _from_names(name, location if root is None else root) if file is None else _from_yaml(name, file, root)
    if not location.is_file() or location.suffix.lower() not in (".yaml", ".yml"):
        raise DataError(f"{name}: expected data.yaml or the folder that holds it, found neither")
    return _from_yaml(name, location, root)


def _from_yaml(name: str, file: Path, given_root: Path | None) -> Description:
    try:
        # Every scalar as the text that it is: a class may be called "no", which YAML takes for false.
        content = parse_yaml(read_text(file, encoding="utf-8-sig"), as_texts=True)
    except NotPlain as error:
        raise DataError(f"{name}: {error}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{name}: {file} cannot be read as YAML: {' '.join(str(error).split())[:200]}") from None
    if not isinstance(content, dict) or "names" not in content:
        raise DataError(f"{name}: {file.name}: expected the names of the classes under names:, found none")
    classes = _classes(name, file, content)
    root, base = _root(name, file, content, given_root)
    folder, notes = Folder(root), []
    parts: dict[str, list[Path]] = {}
    for key, value in content.items():
        part = canonical_split(str(key))
        if part is None or not value:
            continue
        entries = value if isinstance(value, list) else [value]
        places = [_place(name, file, folder, base, str(key), entry) for entry in entries]
        double = next((other for other, there in parts.items() if there == places), None)
        if double is not None:
            notes.append(f"{key} left out: in {file.name} it is the same as {double}")
        else:
            parts[part] = places
    if not parts:
        parts = _usual_parts(name, root)
    return Description(root, classes, parts, "kpt_shape" in content, notes)


def _classes(name: str, file: Path, content: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the classes, which are a list, or a dictionary of their indices."""
    names = content["names"]
    if isinstance(names, dict):
        expected = [str(index) for index in range(len(names))]
        if sorted(names) != sorted(expected):
            got = ", ".join(map(str, names))[:80]
            raise DataError(f"{name}: {file.name}: names: expected the indices 0 to {len(names) - 1}, got {got}")
        names = [names[index] for index in expected]
    if not isinstance(names, list) or not names or not all(isinstance(each, str) and each.strip() for each in names):
        raise DataError(f"{name}: {file.name}: names: expected a list of class names, got {str(names)[:80]!r}")
    names = [each.strip() for each in names]
    twice = next((each for each, times in Counter(names).items() if times > 1), None)
    if twice is not None:
        raise DataError(f"{name}: {file.name}: names: the class {twice!r} stands there twice")
    if content.get("nc") and content["nc"] != str(len(names)):
        count = len(names)
        raise DataError(f"{name}: {file.name}: nc is {content['nc']}, but there are {count} names; mend one of them")
    return tuple(names)


def _root(name: str, file: Path, content: dict[str, Any], given: Path | None) -> tuple[Path, Path]:
    """Return the folder that everything lies in, and the one that paths are relative to."""
    if given is not None:
        return given, given
    base = file.parent / str(content.get("path") or "")
    if not base.is_dir():  # as on the machine where it was written
        return file.parent, file.parent
    inside = _inside(Folder(file.parent), base)
    if inside is None:
        raise DataError(
            f"{name}: {file.name}: path: {content['path']} lies outside of the file's folder; if that is meant, name "
            f"it as root={base}"
        )
    return file.parent, inside


def _inside(folder: Folder, path: Path) -> Path | None:
    """Return a path that leads into the folder without any turns; None for one that leads out of it."""
    if not folder.holds(path):
        return None
    return folder.path / os.path.relpath(os.path.realpath(path), os.path.realpath(folder.path))


def find_from_end(written: str, holders: Sequence[Path], least: int = 1) -> Path | None:
    """Return what a path of another machine leads to here: the most of its end that is there below one of the holders.

    Args:
        written: the path; turns upwards in it are left out, so that it leads nowhere else.
        holders: the folders to look in.
        least: parts of the path that have to be there.
    """
    path = PurePosixPath(written.replace("\\", "/"))
    steps = [step for step in path.parts if step not in ("..", ".", "/")]
    cuts = range(max(len(steps) - least, 0) + 1 if steps else 0)
    tried = (holder.joinpath(*steps[cut:]) for cut in cuts for holder in holders)
    return next((each for each in tried if os.path.lexists(each)), None)


def _place(name: str, file: Path, folder: Folder, base: Path, key: str, entry: object) -> Path:
    """Return the folder or list of images that an entry of the YAML names.

    The entry is taken as it stands. Where there is nothing, the place is looked for from its end, so that
    `../train/images`, as Roboflow writes, and paths of another machine are found in the folder.
    """
    if not isinstance(entry, str) or "\0" in entry:
        raise DataError(f"{name}: {file.name}: {key}: expected a folder or a list of images, got {str(entry)[:80]!r}")
    literal = base / entry.replace("\\", "/")
    if os.path.exists(literal):
        inside = _inside(folder, literal)
        if inside is None:
            raise DataError(
                f"{name}: {file.name}: {key}: {entry} lies outside of {folder.path}; move it there, or name the folder "
                "that holds all as root="
            )
        return inside
    found = find_from_end(entry, (base, folder.path))
    if found is None:
        raise DataError(f"{name}: {file.name}: {key}: {entry} is not there; looked in {folder.path}")
    if not folder.holds(found):
        raise DataError(f"{name}: {folder.relative(found)} is a link out of the folder; copy what it leads to")
    return found


def _from_names(name: str, folder: Path) -> Description:
    """Describe a folder without YAML by its list of classes, as Label Studio writes it."""
    file = next((folder / each for each in _CLASS_FILES if (folder / each).is_file()), None)
    if file is None:
        raise DataError(f"{name}: expected data.yaml, or classes.txt with a class in each line, found neither")
    return Description(folder, read_classes(file), _usual_parts(name, folder), False, [])


def _usual_parts(name: str, root: Path) -> dict[str, list[Path]]:
    """Return the folders of images where nothing names them: of splits under images/ or above it, or images/ alone."""
    try:
        folder = Folder(root)
        under, above = root / "images", [entry for entry in folder.entries(root) if entry.is_dir()]
        found = [entry for entry in (folder.entries(under) if under.is_dir() else []) if entry.is_dir()]
    except BadSample as bad:
        raise DataError(f"{name}: {bad}") from None
    parts = {part: [Path(entry.path)] for entry in found if (part := canonical_split(entry.name))}
    if parts:
        return parts
    parts = {
        part: [Path(entry.path) / "images"]
        for entry in above
        if (part := canonical_split(entry.name)) and os.path.isdir(os.path.join(entry.path, "images"))
    }
    if parts:
        return parts
    if not under.is_dir():
        raise DataError(f"{name}: expected the images in images/, found no such folder in {root}")
    return {"": [under]}


def _head(path: Path) -> bytes:
    try:
        require_plain(path)
        with path.open("rb") as file:
            return file.read(1 << 16)
    except (OSError, NotPlain):
        return b""
