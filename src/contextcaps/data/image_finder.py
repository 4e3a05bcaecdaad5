"""Find the image files that a table names, however it writes their paths, and none outside of a folder."""

import contextlib
import os
import re
from pathlib import Path, PurePosixPath, PureWindowsPath

from contextcaps.data.file_source import BadSample, Folder
from contextcaps.data.image_files import looks_like_image

__all__ = ["ImageFinder", "is_image_name"]

_DRIVE = re.compile(r"[a-z]:|\\\\", re.IGNORECASE)
_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)


def is_image_name(text: object) -> bool:
    """Return whether a text ends as the name of an image file does."""
    return isinstance(text, str) and looks_like_image(text.strip())


class ImageFinder:
    """Returns the file of each name: below a folder, with `/` or `\\` between folders, with or without a suffix.

    Args:
        folder: where names are relative to.
        named: the user has named this folder as that of the images. Then a file may lie in any folder below it, and
            absolute paths into it are allowed.
    """

    def __init__(self, folder: Folder, named: bool) -> None:
        self._folder, self._named = folder, named
        self._tops = {os.path.abspath(folder.path), os.path.realpath(folder.path)}
        self._by_name: dict[str, list[str]] | None = None
        self._stems: dict[Path, dict[str, list[str]]] = {}
        self.missing: list[str] = []
        """Names of which there is no file."""

    def find(self, name: str) -> Path:
        """Return the path of an image; raise `BadSample` if there is none, or more than one."""
        if _ADDRESS.match(name):
            raise BadSample(f"{name!r} is an address on the network; download the images and name the files")
        if _DRIVE.match(name) and os.name != "nt":
            raise BadSample(
                f"file name {name!r} is absolute, and of a Windows machine; write the part below the folder of the "
                "images, and name that folder with root=FOLDER"
            )
        if name.startswith("/"):
            name = self._below(name)
        path = self._folder.member(name)
        if os.path.lexists(path):
            return path
        if "\\" in name:
            name = PureWindowsPath(name).as_posix()
            path = self._folder.member(name)
            if os.path.lexists(path):
                return path
        found = self._similar(path)
        found = found or (self._search(name) if self._named else [])
        if len(found) > 1:
            shown = ", ".join(sorted(self._folder.relative(each) for each in found)[:5])
            raise BadSample(f"{name} is ambiguous, there are {len(found)} such files: {shown}; write the whole path")
        if not found:
            self.missing.append(name)
            raise BadSample(f"{name} is missing")
        return found[0]

    def _below(self, name: str) -> str:
        """Return an absolute path relative to the folder, if it is one that the user has named."""
        path = PurePosixPath(name)
        inside = [top for top in self._tops if path.is_relative_to(top)]
        if self._named and inside:
            return str(path.relative_to(max(inside, key=len)))
        raise BadSample(
            f"file name {name!r} is absolute; expected one relative to the folder, or allow the one that it is in: "
            f"root={path.parent}"
        )

    def _similar(self, path: Path) -> list[Path]:
        """Return the images in its folder with this name and any suffix, or with its suffix in another case."""
        folder = path.parent
        if folder not in self._stems:
            stems = self._stems[folder] = {}
            if os.path.isdir(folder):
                for entry in self._folder.entries(folder):
                    if is_image_name(entry.name):
                        stems.setdefault(Path(entry.name).stem, []).append(entry.name)
        if is_image_name(path.name):
            found = self._stems[folder].get(path.stem, [])
            return [folder / each for each in found if each.lower() == path.name.lower()]
        return [folder / each for each in self._stems[folder].get(path.name, [])]

    def _search(self, name: str) -> list[Path]:
        """Return the images in any folder below whose paths end with this name."""
        if self._by_name is None:
            self._by_name = {}
            left = [str(self._folder.path)]  # not os.walk, which nests as deep as the folders before Python 3.12
            while left:
                with contextlib.suppress(OSError), os.scandir(left.pop()) as found_here:
                    entries = sorted(found_here, key=lambda entry: entry.name)
                    left += [each.path for each in reversed(entries) if each.is_dir(follow_symlinks=False)]
                    for each in entries:
                        # macOS leaves ._x.jpg behind.
                        if is_image_name(each.name) and not each.name.startswith(".") and not each.is_dir():
                            for key in (each.name, os.path.splitext(each.name)[0]):
                                self._by_name.setdefault(key, []).append(each.path)
        end = os.path.normpath(name)
        found = self._by_name.get(os.path.basename(end), [])
        if end != os.path.basename(end):
            ends = [os.path.abspath(path if is_image_name(name) else os.path.splitext(path)[0]) for path in found]
            found = [path for path, whole in zip(found, ends, strict=True) if whole.endswith("/" + end)]
        return [Path(path) for path in found]
