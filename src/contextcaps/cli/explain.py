"""contextcaps explain."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from contextcaps.cli.command import Command, File, Folder, refuse_models, require_location

if TYPE_CHECKING:
    from contextcaps.tagging import Explanation, Tagger

__all__ = ["ExplainImage"]


@dataclasses.dataclass(frozen=True)
class ExplainImage(Command):
    """Say why an image has its tags: what it shows where, what other classes add.

    The parts of a score sum to its logit exactly.

    Models whose heads have no such parts are refused.
    """

    image: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[IMAGE]")] = None
    """The image file; --relations alone needs none."""
    model: Annotated[str | None, tyro.conf.arg(metavar="NAME_OR_PATH")] = None
    """A shipped model, as contextcaps models lists them (coco80 by default), a run's folder, a model's folder, or
    hf:OWNER/NAME on the Hugging Face Hub."""
    classes: Annotated[str | None, tyro.conf.arg(metavar="CLASS,CLASS,…")] = None
    """Explain these besides the tags, also where they are absent: why not?"""
    known: Annotated[str | None, tyro.conf.arg(metavar="CLASS=yes,CLASS=no,…")] = None
    """What is known of the image, such as "oven=yes,bed=no"; shows which scores it moves, and through which class."""
    html: Annotated[Path | None, tyro.conf.arg(metavar="PAGE")] = None
    """Write a page with a heat map of each class over the image."""
    out: Folder = None
    """Write explanation.json and a heat map of each class, as large as the image, into this folder."""
    format: Annotated[Literal["text", "json"] | None, tyro.conf.arg(metavar="{text,json}")] = None
    """What to print: by default text at a terminal, otherwise json."""
    relations: File = None
    """Draw the strongest relations between classes that the model has learned, as SVG."""
    data: Annotated[str | None, tyro.conf.arg(metavar="SOURCE")] = None
    """With --relations, draw below them what the labels of this source say of the same classes, such as those that the
    model was trained on."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where to compute; auto takes a GPU if there is one."""

    def run(self) -> None:
        from contextcaps.models.loading import DEFAULT_MODEL
        from contextcaps.tagging import load, parse_known

        model = DEFAULT_MODEL if self.model is None else self.model
        self._require_places()
        known = None if self.known is None else parse_known(self.known)
        tagger = load(model, self.device)
        if self.relations is not None:
            self._draw_relations(self.relations, tagger, model)
        if self.image is None:
            return
        from contextcaps.tagging.known import parse_classes

        asked = None if self.classes is None else parse_classes(self.classes, tagger.classes)
        explanation = tagger.explain(self.image, asked, known)
        self._write(self.image, explanation, f"Tagged by {model} ({tagger.config.model}).")

    def _require_places(self) -> None:
        """Refuse, before the work starts, what cannot be written."""
        from contextcaps.atomic import require_place
        from contextcaps.tagging import check_page

        if self.data is not None:
            require_location(self.data)
            if self.relations is None:
                raise ValueError("--data: expected --relations beside it, which draws what its labels say of classes")
        if self.image is None:
            of_an_image = ("classes", "known", "html", "out", "format")
            given = [f"--{name}" for name in of_an_image if getattr(self, name) is not None]
            if given or self.relations is None:
                raise ValueError(f"no image: expected the file to explain{f' with {given[0]}' if given else ''}")
        else:
            refuse_models([self.image], "explain")
        if self.html is not None:
            check_page(self.html)
        if self.relations is not None:
            if self.relations.suffix.lower() != ".svg":
                raise ValueError(f"--relations {self.relations}: expected the name of an SVG file, such as graph.svg")
            require_place(self.relations, "--relations")
        if self.out is not None:
            if self.out.exists() and not self.out.is_dir():
                raise ValueError(f"--out {self.out}: expected a folder, got a file")
            if not self.out.is_dir():
                require_place(self.out, "--out")

    def _draw_relations(self, path: Path, tagger: "Tagger", model: str) -> None:
        from contextcaps.atomic import write_atomically
        from contextcaps.tagging.relations import draw_relations, label_relations, strongest_relations

        relations = strongest_relations(tagger.network, tagger.classes)
        of_labels, data = relations[:0], ""
        if self.data is not None:
            from contextcaps.data import open_source
            from contextcaps.evaluation.scoring import class_order
            from contextcaps.models.trained import without_folders

            source = open_source(self.data)
            class_order(tagger.network, source)  # refuses other classes
            of_labels, data = label_relations(source), without_folders(source.name)
        drawn = draw_relations(relations, f"What {model} has learned of its classes", of_labels, data)
        write_atomically(path, drawn)
        attract = sum(each.strength > 0 for each in relations)
        print(f"{path} shows {attract} pairs that attract, {len(relations) - attract} that exclude", file=sys.stderr)

    def _write(self, image: str, explanation: "Explanation", caption: str) -> None:
        from contextcaps.atomic import write_atomically
        from contextcaps.tagging import print_reasons, write_explanation, write_heat_maps

        document = json.dumps(explanation.document(), ensure_ascii=False)
        has_files = self.html is not None or self.out is not None
        form = self.format or ("text" if sys.stdout.isatty() else None if has_files else "json")
        if self.html is not None:
            write_explanation(explanation, image, self.html, caption)
        if self.out is not None:
            self.out.mkdir(exist_ok=True)
            write_atomically(self.out / "explanation.json", document.encode("utf-8", "backslashreplace") + b"\n")
            write_heat_maps(explanation, image, self.out)
        if form == "text":
            print_reasons(explanation)
        elif form == "json":
            sys.stdout.flush()
            sys.stdout.buffer.write(document.encode("utf-8", "backslashreplace") + b"\n")
            sys.stdout.buffer.flush()
