"""Tell the images in a folder from what else lies there; nothing is opened."""

import os
from pathlib import Path

from contextcaps.data.file_source import BadSample, Folder

__all__ = ["FILE_SUFFIXES", "is_clutter", "looks_like_image", "walk_images"]

FILE_SUFFIXES = (
    *(".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".jp2", ".j2k", ".avif", ".heic", ".heif"),
)
"""Suffixes, in lower case, of the files in a folder that are taken for images."""

_CLUTTER = ("thumbs.db", "desktop.ini", "__macosx", "__pycache__")


def looks_like_image(name: str) -> bool:
    """Return whether a file's name has the suffix of an image, in any case of letters."""
    return os.path.splitext(name)[1].lower() in FILE_SUFFIXES


def is_clutter(name: str) -> bool:
    """Return whether a file or folder is hidden, or one that a system leaves behind, such as Thumbs.db.

    >>> [name for name in (".DS_Store", "._a.jpg", "__MACOSX", "a.JPG") if is_clutter(name)]
    ['.DS_Store', '._a.jpg', '__MACOSX']
    """
    return name.startswith(".") or name.lower() in _CLUTTER


def walk_images(folder: Folder, start: Path) -> tuple[list[Path], list[Path]]:
    """Return the images under a folder, at any depth and sorted, and the other files; clutter is in neither.

    Links to folders inside are not followed, since their images come anyway.

    Raises:
        BadSample: a folder is a link to outside, or cannot be read.
    """
    images: list[Path] = []
    others: list[Path] = []
    left = [(start, True)]  # paths still to come and whether they are folders, the next one last
    while left:
        path, is_folder = left.pop()
        if not is_folder:
            (images if looks_like_image(path.name) else others).append(path)
            continue
        found = []
        for entry in folder.entries(path):
            inner = path / entry.name
            if is_clutter(entry.name):
                continue
            if entry.is_dir() and entry.is_symlink():
                if not folder.holds(inner):
                    raise BadSample(f"{folder.relative(inner)} is a link out of the folder; copy what it leads to")
                continue
            found.append((inner, entry.is_dir()))
        left += reversed(found)
    return images, others
