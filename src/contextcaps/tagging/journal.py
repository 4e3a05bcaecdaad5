"""Keep the rows of `tag --out FILE` in FILE.part until the file is whole, so that a stopped command can go on.

The first line says by which model and settings the rows were made. Each further line is a tagging as JSON with nothing
rounded, whatever the format of the file, and leaves this process before the next image is tagged. A kill cuts off the
last line at most, whose image is then tagged again.
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from contextcaps.documents import counted
from contextcaps.tagging.formats import row_key
from contextcaps.tagging.inputs import NotAnImage
from contextcaps.tagging.tagger import Tagger
from contextcaps.tagging.tags import Tag, Tagging

__all__ = ["Journal", "model_fingerprint"]


class Journal:
    """The rows of a command under way.

    Args:
        out: the file that the rows are for.
        resume: go on with the rows that are there; otherwise there may be none.

    Raises:
        ValueError: there are rows of a command that was stopped, but `resume` is not asked for.
    """

    def __init__(self, out: Path, resume: bool = False) -> None:
        self.path = out.with_name(f"{out.name}.part")
        self.done: set[str] = set()
        """The `row_key` of images with a row; those that could not be read are tried again."""
        self.skipped = 0
        """Images that `left` has left out."""
        self._rows = 0
        self._file: BinaryIO | None = None
        self._all_scores = False
        if self.path.exists() and not resume:
            raise ValueError(
                f"{self.path}: has the rows of a command that was stopped; add --resume to go on with them, or remove "
                "it to begin anew"
            )
        if resume and not self.path.exists():
            print(f"note: nothing to resume: there is no {self.path}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def kept(self, settings: Mapping[str, Any], all_scores: bool, done: Iterable[str] = ()) -> Iterator[None]:
        """Take up the rows that are there; after an error, say how many are kept and where.

        Args:
            settings: everything that the rows depend on.
            all_scores: keep every class's score, not only those of the tags.
            done: the `row_key` of images that have a row elsewhere.

        Raises:
            ValueError: the rows that are there were made by other settings, or the file is something else.
        """
        self._all_scores = all_scores
        self._begin(json.dumps({"contextcaps": "tag", "settings": settings}, default=str))
        self.done.update(done)
        try:
            yield
        except BaseException:
            self._close()
            if self._rows:
                kept = f"{counted(self._rows, 'row')} kept in {self.path}; the same command with --resume goes on"
                print(kept, file=sys.stderr, flush=True)
            else:
                self.path.unlink(missing_ok=True)
            raise
        self._close()
        self.path.unlink(missing_ok=True)

    def left(self, images: Iterable[str | NotAnImage]) -> Iterator[str | NotAnImage]:
        """Yield the images that have no row yet; count the others."""
        for image in images:
            if isinstance(image, str) and row_key(image) in self.done:
                self.skipped += 1
            else:
                yield image

    def write(self, tagging: Tagging) -> None:
        """Add a row. It survives the death of this process."""
        scores = tagging.scores if self._all_scores else None
        row = {
            "image": tagging.image,
            "tags": [dataclasses.asdict(tag) for tag in tagging.tags],
            "error": tagging.error,
            "given": dict(tagging.given),
            "scores": None if scores is None else scores.tolist(),
        }
        self._append(json.dumps(row))
        self._rows += 1

    def taggings(self) -> Iterator[Tagging]:
        """Yield the rows, without the errors of images that were tried again."""
        last = {row_key(tagging.image): place for place, tagging in enumerate(self._read())}
        for place, tagging in enumerate(self._read()):
            if tagging.error is None or last[row_key(tagging.image)] == place:
                yield tagging

    def _begin(self, header: str) -> None:
        if self.path.exists():
            self._cut_to_whole_lines()
        if not self.path.exists():
            self._file = open(self.path, "xb", buffering=0)  # noqa: SIM115  # closed by `kept`
            self._append(header)
            return
        self._require_same(json.loads(header)["settings"])
        for tagging in self._read():
            self._rows += 1
            if tagging.error is None:
                self.done.add(row_key(tagging.image))
        self._file = open(self.path, "ab", buffering=0)  # noqa: SIM115

    def _append(self, line: str) -> None:
        assert self._file is not None
        whole = line.encode() + b"\n"
        if self._file.write(whole) != len(whole):
            raise OSError(errno.ENOSPC, "the disk is full", str(self.path))

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _lines(self) -> Iterator[bytes]:
        with open(self.path, "rb") as file:
            yield from file

    def _read(self) -> Iterator[Tagging]:
        lines = self._lines()
        next(lines)  # the settings
        for line in lines:
            row = json.loads(line)
            tags = tuple(Tag(**tag) for tag in row["tags"])
            scores = None if row["scores"] is None else np.array(row["scores"], dtype=np.float32)  # [J]
            yield Tagging(row["image"], tags, error=row["error"], scores=scores, given=row["given"])

    def _cut_to_whole_lines(self) -> None:
        """Cut off a row that was being written; remove the file if it has not even its first line."""
        whole = sum(len(line) for line in self._lines() if line.endswith(b"\n"))
        if whole == 0:
            self.path.unlink()
        else:
            os.truncate(self.path, whole)

    def _require_same(self, settings: Mapping[str, Any]) -> None:
        try:
            begun = json.loads(next(self._lines()))["settings"]
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{self.path}: not written by contextcaps tag; move it away") from None
        other = [name for name in {**begun, **settings} if begun.get(name) != settings.get(name)]
        if other:
            raise ValueError(
                f"{self.path}: was begun with other settings ({', '.join(other)}); ask for the same as then, or remove "
                "it to begin anew"
            )


def model_fingerprint(tagger: Tagger) -> str:
    """Return a hash of a model's weights, classes, thresholds and calibration."""
    calibration = tagger.config.to_dict()["calibration"]
    digest = hashlib.sha256(json.dumps([tagger.classes, tagger.thresholds, calibration]).encode())
    digest.update(tagger.scorer.fingerprint())
    return digest.hexdigest()[:16]
