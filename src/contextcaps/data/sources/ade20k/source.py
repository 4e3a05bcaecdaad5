"""Read ADE20K (Zhou et al., Scene Parsing through ADE20K Dataset, https://ade20k.csail.mit.edu) in its three layouts.

    challenge  ADEChallengeData2016  images/training/X.jpg, annotations/training/X.png (1 to 150, 0 = other)
    full2016   ADE20K_2016_07_26     images/training/.../X.jpg, X_seg.png, X_atr.txt
    full2021   ADE20K_2021_17_01     images/ADE/training/.../X.jpg, X_seg.png, X.json

and the same under validation. The releases' index files (index_ade20k.pkl, index_ade20k.mat) are never opened.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from contextcaps.data.file_source import (
    BadSample,
    FileSource,
    Folder,
    Record,
    check_access,
    require_choice,
    require_fraction,
)
from contextcaps.data.problems import DataError, OnBad
from contextcaps.data.source import Unlabelled
from contextcaps.data.sources.ade20k.challenge import read_challenge, read_object_info
from contextcaps.data.sources.ade20k.classes import BENCHMARK_CLASSES
from contextcaps.data.sources.ade20k.full import FullRelease

__all__ = ["ADE20KSource", "Layout"]

Layout = Literal["auto", "challenge", "full2016", "full2021"]

_SPLITS = {"train": "training", "val": "validation"}
"""Split → its folder in all layouts."""


class ADE20KSource(FileSource):
    """Reads ADE20K in the layout found at a location, which is the release's folder or the one above it.

    A class is present if it covers at least `min_area` of the image. In the challenge layout its pixels in the mask are
    counted. In the full releases, with `min_area=0`, it is present if one of the image's objects (not parts of objects)
    bears its name; otherwise the pixels in _seg.png are counted as well.

    Args:
        location: the folder.
        on_bad: "stop" at bad data, or "skip" it.
        split: "train" (or "training"), "val" (or "validation"); None opens both, train first.
        layout: the layout at the location; "auto" finds out.
        classes: "150" for the benchmark's classes, named by their first name; "all" for all object names of a full
            release, in lower case, each with its synonyms ("car, auto, automobile, machine, motorcar"), sorted.
        min_area: least area of a class, as a fraction of the image; 0: one pixel or one object is enough.
        min_count: with classes="all": least number of images, of all splits, that show a class.
        unlabelled: an image without any class is a problem ("refuse"), left out ("drop") or kept ("keep").
    """

    kind = "ade20k"

    def __init__(
        self,
        location: str,
        *,
        on_bad: OnBad = "stop",
        split: str | None = None,
        layout: Layout = "auto",
        classes: Literal["150", "all"] = "150",
        min_area: float = 0.0,
        min_count: int = 1,
        unlabelled: Unlabelled = "refuse",
    ) -> None:
        settings = {"classes": classes, "min_area": min_area, "min_count": min_count}
        super().__init__(f"ade20k:{location}", on_bad, unlabelled, settings)
        require_choice("layout", layout, ("auto", "challenge", "full2016", "full2021"))
        require_choice("classes", classes, ("150", "all"))
        require_fraction("min_area", min_area)
        if min_count < 1:
            raise DataError(f"{self.name}: min_count: expected at least 1 image, got {min_count}")
        if min_count > 1 and classes != "all":
            raise DataError(f"{self.name}: min_count is for classes=all; the 150 classes are always all there")
        self.layout, root = _find_layout(self.name, location, layout)
        self.root = os.path.realpath(root)
        folder = Folder(root)
        base = root / "images" / "ADE" if self.layout == "full2021" else root / "images"
        self.splits = tuple(name for name, word in _SPLITS.items() if os.path.isdir(base / word))
        chosen = self._choose_split(split)
        try:
            if self.layout == "challenge":
                self._open_challenge(folder, chosen, classes, min_area)
            else:
                self._open_full(folder, base, chosen, classes, min_area, min_count)
        except BadSample as bad:  # a whole folder or list that cannot be read
            raise DataError(f"{self.name}: {bad}") from None
        self._finish()

    def _open_challenge(self, folder: Folder, chosen: tuple[str, ...], classes: str, min_area: float) -> None:
        if classes == "all":
            raise DataError(f"{self.name}: classes=all is for the full releases; this layout has only the 150 classes")
        info = folder.path / "objectInfo150.txt"
        synonyms = BENCHMARK_CLASSES
        if os.path.lexists(info):
            self._settings["objectInfo150"] = folder.facts(info)
            synonyms = read_object_info(info)
        self.classes = tuple(names[0] for names in synonyms)
        for name in chosen:
            self._take(read_challenge(folder, _SPLITS[name], len(self.classes), min_area))

    def _open_full(
        self, folder: Folder, base: Path, chosen: tuple[str, ...], classes: str, min_area: float, min_count: int
    ) -> None:
        if classes == "all" and min_area > 0 and self.layout == "full2016":
            # The index file that names the numbers in _seg.png is a pickle or a MATLAB file.
            raise DataError(
                f"{self.name}: min_area: the 2016 release does not say which name a pixel has, "
                "only which of the 150 classes; use classes=150, or min_area=0"
            )
        release = FullRelease(folder, self.layout)
        # The list of all names has to be the same whichever split is opened, so it is made of all of them.
        for name in self.splits if classes == "all" else chosen:
            release.read(base / _SPLITS[name], name)
        if classes == "all":
            self.classes = release.all_names(min_count)
            left_out = len(release.all_names(1)) - len(self.classes)
            if left_out and not self.classes:
                raise DataError(f"{self.name}: min_count: none of {left_out} names is in {min_count} images or more")
            if left_out:
                self.notes.append(f"{left_out} names in fewer than {min_count} images left out (min_count)")
        else:
            self.classes = tuple(names[0] for names in BENCHMARK_CLASSES)
        for name in chosen:
            for where, what in release.problems[name]:
                self.problems.add(where, what)
            self._take(release.records(name, self.classes if classes == "all" else None, min_area))
        self._without_extent = sum(release.without_extent[name] for name in chosen)

    def _take(self, found: Iterator[tuple[str, Record | BadSample]]) -> None:
        for where, record in found:
            if isinstance(record, BadSample):
                self.problems.add(where, str(record))
            else:
                self._keep(record)


def _find_layout(name: str, location: str, wanted: Layout) -> tuple[Layout, Path]:
    """Find the layout at a location, and its folder: the location itself or a folder in it."""
    root = Path(location)
    check_access(name, root)
    if not location or not root.is_dir():
        raise DataError(f"{name}: expected the folder of ADE20K (such as ADEChallengeData2016), found no such folder")
    try:
        below = [Path(entry.path) for entry in Folder(root).entries(root) if entry.is_dir(follow_symlinks=False)]
    except BadSample as bad:
        raise DataError(f"{name}: {bad}") from None
    found = [(layout, root)] if (layout := _layout_of(root)) else []
    found = found or [(layout, each) for each in below if (layout := _layout_of(each))]
    matching = [(layout, each) for layout, each in found if wanted in ("auto", layout)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        listed = ", ".join(f"{each.name} ({layout})" for layout, each in matching)
        raise DataError(f"{name}: several releases are here: {listed}; name the folder of one")
    if found:
        raise DataError(f"{name}: layout={wanted} is not here, but {', '.join(layout for layout, _ in found)}")
    for each in (root, *below):
        check_access(name, each, each / "images", each / "images" / "ADE")
    raise DataError(
        f"{name}: expected images/training or images/validation with annotations/ beside it (ADEChallengeData2016), "
        "or images/ADE/training (2021 release), or images/training alone (2016 release); found none of them"
    )


def _layout_of(folder: Path) -> Layout | None:
    def has(base: str) -> bool:
        return any(os.path.isdir(folder / base / word) for word in _SPLITS.values())

    if has("images/ADE"):
        return "full2021"
    if has("images"):
        is_challenge = os.path.isdir(folder / "annotations") or os.path.isfile(folder / "objectInfo150.txt")
        return "challenge" if is_challenge else "full2016"
    return None
