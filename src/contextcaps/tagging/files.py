"""Tag files: rows to a file, to standard output or to a person, a page, sidecars; a stopped command can go on."""

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from contextcaps.data.progress import progress_of
from contextcaps.documents import counted
from contextcaps.tagging.formats import Format
from contextcaps.tagging.gallery import Gallery, check_page
from contextcaps.tagging.inputs import count_images, find_images
from contextcaps.tagging.journal import Journal, model_fingerprint
from contextcaps.tagging.output import Count, TakesRows, check_output, open_output, tagged_images, write_tags
from contextcaps.tagging.tagger import Tagger
from contextcaps.tagging.tags import Tagging
from contextcaps.tagging.terminal import Terminal
from contextcaps.tagging.xmp import Sidecars

__all__ = ["Destination"]


class Destination:
    """Where the results of tagging go. It is made before the model is loaded: what will not do is said at once.

    Args:
        out: file for the rows; standard output by default.
        form: of the rows; by default as the suffix of `out` says, JSON lines on standard output, and bars for a person
            where that is a terminal.
        resume: go on with the rows that a stopped command has left beside `out`.
        only_new: keep the rows of `out`, and tag only images without one.
        page: file for a page with pictures; rows are then written to `out` or in a `form` that is asked for only.
        sidecars: write the tags into XMP files beside the images.
        all_scores: write every class's score.

    Raises:
        ValueError: a file cannot be written, or the arguments do not go together.
    """

    def __init__(
        self,
        out: Path | None = None,
        form: Format | None = None,
        *,
        resume: bool = False,
        only_new: bool = False,
        page: Path | None = None,
        sidecars: bool = False,
        all_scores: bool = False,
    ) -> None:
        self.has_rows = page is None or out is not None or form is not None
        self.is_for_a_person = self.has_rows and out is None and form is None and not all_scores and sys.stdout.isatty()
        self.out, self.form, self.only_new, self.page = out, check_output(out, form), only_new, page
        self.all_scores = all_scores
        if out is None and (resume or only_new):
            raise ValueError(f"--{'resume' if resume else 'only-new'}: needs the file with the rows: --out FILE")
        self.journal = None if out is None else Journal(out, resume)
        if page is not None:
            check_page(page, out)
        self.sidecars = Sidecars() if sidecars else None
        self.failures = _Failures()

    def tag(
        self,
        tagger: Tagger,
        names: Sequence[str],
        *,
        known: Mapping[str, bool] | None = None,
        progress: bool = True,
        by: str = "",
        settings: Mapping[str, Any],
        **options: Any,
    ) -> Count:
        """Tag the files that names stand for, and write all that is asked for.

        Args:
            tagger: the model.
            names: of files, folders and patterns, or `-` for names on standard input.
            known: labels of all these images that are known.
            progress: show progress on standard error.
            by: name of the model, for the page.
            settings: all that the rows depend on, besides the model; a command that goes on has to have the same.
            options: of `Tagger.tag_stream`.
        """
        images = find_images(names)
        columns = (self.form, tagger.classes, self.all_scores, known is not None)
        before = tagged_images(self.out, *columns) if self.only_new and self.out is not None else set()
        left = images if self.journal is None else self.journal.left(images)
        taggings = tagger.tag_stream(left, known=known, **options)
        tell = progress_of("tagging", count_images(names) if progress else None, progress)
        with contextlib.ExitStack() as stack:
            gallery = None if self.page is None else stack.enter_context(Gallery())
            if self.journal is not None and self.out is not None:
                of_model = {"model": model_fingerprint(tagger)}
                stack.enter_context(self.journal.kept({**of_model, **settings}, self.all_scores, before))
                with contextlib.closing(taggings), tell as done:
                    # The journal last: with --resume an image without a row is tagged again, its sidecar merged again.
                    count = write_tags(taggings, [*self._beside(), self.journal], done)
                with open_output(self.out, *columns) as rows:
                    if before:
                        rows.copy(self.out)
                    write_tags(_passing(self.journal.taggings(), gallery), [rows])
            else:
                with contextlib.closing(taggings), self._open(columns) as rows_or_none, tell as done:
                    count = write_tags(_passing(taggings, gallery), [*rows_or_none, *self._beside()], done)
            if gallery is not None and self.page is not None:
                network = f"{tagger.config.model}, {counted(len(tagger.classes), 'class')}"
                gallery.write(self.page, "Tagged images", f"Tagged by {by} ({network}).")
        return count

    @contextlib.contextmanager
    def _open(self, columns: tuple[Format, tuple[str, ...], bool, bool]) -> Iterator[list[TakesRows]]:
        """Open what takes the rows, if anything does, where they do not go to a file."""
        if self.is_for_a_person:
            yield [Terminal()]
        elif self.has_rows:
            with open_output(None, *columns) as rows:
                yield [rows]
        else:
            yield []

    def _beside(self) -> list[TakesRows]:
        """Return what takes the new results besides the rows."""
        return [self.failures] if self.sidecars is None else [self.failures, self.sidecars]

    def closing_lines(self, count: Count) -> list[str]:
        """Say how many images were tagged and where that is seen; first what could not be read, if no row told it."""
        more = f"; {count.failed - 1:,} more" if count.failed > 1 else ""
        told = self.out is None and self.has_rows
        failures = [] if told or not count.failed else [f"{self.failures.first}{more}"]
        skipped = f", {self.journal.skipped:,} had a row" if self.journal is not None and self.journal.skipped else ""
        page = "" if self.page is None else f"; {self.page} shows {'the new ones' if self.only_new else 'them'}"
        sidecars = "" if self.sidecars is None else f"; {counted(self.sidecars.written, 'sidecar')} beside them"
        tagged = f"{counted(count.tagged, 'image')} tagged, {count.failed:,} could not be read"
        return [*failures, f"{tagged}{skipped}{page}{sidecars}"]


class _Failures:
    """Keeps the first image that could not be read, and why."""

    first = ""

    def write(self, tagging: Tagging) -> None:
        if tagging.error is not None:
            self.first = self.first or f"{tagging.image}: {tagging.error}"


def _passing(taggings: Iterable[Tagging], gallery: Gallery | None) -> Iterable[Tagging]:
    return taggings if gallery is None else gallery.passing(taggings)
