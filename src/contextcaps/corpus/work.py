"""What Ray's workers do with a block: tasks decode its images, actors with the model tag them and write its files."""

import dataclasses
import io
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from contextcaps.corpus.plan import Done, block_file, read_block
from contextcaps.corpus.reading import decoded_rows
from contextcaps.corpus.store import Store
from contextcaps.tagging.formats import OUTPUTS, Format
from contextcaps.tagging.inputs import NotAnImage
from contextcaps.tagging.journal import model_fingerprint
from contextcaps.tagging.loading import load
from contextcaps.tagging.tagger import Tagger
from contextcaps.version import __version__

__all__ = ["Decode", "Model", "Score", "Writing"]


@dataclasses.dataclass(frozen=True)
class Model:
    """The model that every actor loads, once."""

    name: str
    device: str = "auto"

    def load(self) -> Tagger:
        """Load it here."""
        return load(self.name, self.device)

    def fingerprint(self, tagger: Tagger) -> str:
        """Return a hash of its weights and thresholds, which has to be the same on all machines."""
        return model_fingerprint(tagger)


@dataclasses.dataclass(frozen=True)
class Writing:
    """How rows are made and written."""

    out: str
    form: Format
    all_scores: bool
    known: Mapping[str, bool] | None
    options: Mapping[str, Any]
    """Options of `Tagger.tag_stream`."""


@dataclasses.dataclass(frozen=True)
class Decode:
    """Decodes a block, to columns block, image, pixels, error."""

    out: str
    size: tuple[int, int]
    column: str | None
    workers: int

    def __call__(self, number: int) -> dict[str, np.ndarray]:
        listed = read_block(Store(self.out), number)
        names, pixels, errors = decoded_rows(listed, self.size, self.column, self.workers)
        return {
            "block": np.full(len(names), number),  # [n]
            "image": np.array([os.fsencode(name) for name in names], object),  # [n]
            "pixels": pixels,  # [n, H, W, 3]
            "error": np.array(errors, object),  # [n]
        }


class Score:
    """An actor: holds the model, tags blocks, writes their files.

    Args:
        model: which one.
        fingerprint: that the model has to have, as on the machine where the command runs.
        version: of contextcaps there.
        writing: how rows are made and written.
    """

    def __init__(self, model: Model, fingerprint: str, version: str, writing: Writing) -> None:
        self.tagger, self.writing, self.store = model.load(), writing, Store(writing.out)
        self.metadata = {"contextcaps.model": model.name, "contextcaps.model_fingerprint": fingerprint}
        self.metadata["contextcaps.version"] = version
        found = (__version__, model.fingerprint(self.tagger))
        if found != (version, fingerprint):
            raise ValueError(
                f"machine {os.uname().nodename}: has contextcaps {found[0]} with model {model.name} ({found[1]}), the "
                f"command's machine {version} ({fingerprint}); install the same on both"
            )

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        (number,) = set(batch["block"].tolist())
        done = self.tag(number, [os.fsdecode(name) for name in batch["image"]], batch["pixels"], batch["error"])
        return {name: np.array([value]) for name, value in dataclasses.asdict(done).items()}

    def tag(self, block: int, names: list[str], pixels: np.ndarray, errors: np.ndarray) -> Done:
        """Tag a block's images [n, H, W, 3] and write its rows: errors first, since its tags say that it is done.

        Batches begin where those of a single process do, and leave out the same images: scores are equal to the bit.
        """
        images = (
            NotAnImage(name, error) if error else image  # [H, W, 3]
            for name, image, error in zip(names, pixels, errors, strict=True)
        )
        tagged, failed = io.BytesIO(), io.BytesIO()
        counts = {True: 0, False: 0}
        writing = self.writing
        of_model = (self.tagger.classes, writing.all_scores, writing.known is not None, self.metadata)
        outputs = {False: OUTPUTS[writing.form](tagged, *of_model), True: OUTPUTS[writing.form](failed, *of_model)}
        taggings = self.tagger.tag_stream(images, known=writing.known, **writing.options)
        for name, tagging in zip(names, taggings, strict=True):
            is_bad = tagging.error is not None
            outputs[is_bad].write(dataclasses.replace(tagging, image=name))
            counts[is_bad] += 1
        for output in outputs.values():
            output.finish()
        name = block_file("errors", block, writing.form)
        if counts[True]:
            self.store.write(name, failed.getvalue())
        else:
            self.store.remove(name)  # of an attempt that could not read what now can be read
        self.store.write(block_file("tags", block, writing.form), tagged.getvalue())
        return Done(block, counts[False], counts[True])
