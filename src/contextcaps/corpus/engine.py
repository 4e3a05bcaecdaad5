"""Tag a corpus on Ray: list it once, divide it into blocks, have Ray Data decode and tag each block.

Every block's files appear whole or not at all, and hold the same whoever writes them, however often: so each image is
in the output once, whatever was killed on the way. Ray runs again what a dead worker or machine had in hand; the same
command goes on where a dead command stood (`contextcaps.corpus.plan`).
"""

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow

from contextcaps.corpus.cluster import connected
from contextcaps.corpus.listing import LISTING, Container, find_inputs, list_container, row_of, table_of
from contextcaps.corpus.plan import Done, DoneBlocks, open_plan, write_plan
from contextcaps.corpus.running import run_blocks, store_bytes, what_failed
from contextcaps.corpus.store import Store
from contextcaps.corpus.work import Decode, Model, Score, Writing
from contextcaps.data.progress import progress_of
from contextcaps.tagging.formats import Format
from contextcaps.tagging.inputs import NotAnImage
from contextcaps.tagging.output import Count
from contextcaps.version import __version__

__all__ = ["CorpusOptions", "tag_corpus"]

_LISTED = 10_000  # files that are listed at once
_RETRIES = 5  # of a task that lists, and whose worker died
_DECODERS = 2  # threads of a task


@dataclasses.dataclass(frozen=True)
class CorpusOptions:
    """How a corpus is divided and spread."""

    address: str | None = None
    """Where a Ray cluster runs; None starts one on this machine, for this command."""
    workers: int | None = None
    """Actors that hold the model; by default one for each GPU, or for each core where there is none."""
    block_size: int = 512
    """Images of a block: what is decoded together, written as one file, and done again after a kill."""
    image_column: str | None = None
    """Column of Parquet tables that has the images or their paths; by default the first whose name says so."""
    cores: int | None = None
    """Cores of a cluster that is started."""


def tag_corpus(
    names: Sequence[str],
    out: str,
    model: Model,
    *,
    form: Format = "parquet",
    all_scores: bool = False,
    known: Mapping[str, bool] | None = None,
    batch_size: int = 64,
    options: CorpusOptions | None = None,
    progress: bool = True,
    **settings: Any,
) -> Count:
    """Tag the images that names stand for, and write a folder of tags and one of errors; go on if it was begun.

    Args:
        names: as `contextcaps.corpus.listing.find_inputs` takes them.
        out: folder, or its address (s3://…); all machines of the cluster have to reach it, and the images.
        model: which one.
        form: of the rows.
        all_scores: write every class's score.
        known: labels of all these images that are known.
        batch_size: images to compute at once.
        options: how the corpus is divided and spread.
        progress: show progress on standard error.
        settings: threshold, precision_at_least, recall_at_least, top_k, as for `Tagger.tag`.

    Returns:
        The images that are tagged and those that could not be read, in all.

    Raises:
        ValueError: the settings do not go together, or the folder has something else.
        OSError: a file cannot be written, or no cluster be reached; what is done stays done.
    """
    options = options or CorpusOptions()
    if options.block_size < 1 or options.block_size % batch_size:
        raise ValueError(f"--block-size: expected a multiple of the batch size {batch_size}, got {options.block_size}")
    store, tagger = Store(out), model.load()
    tagger.choose_thresholds(**{name: settings.get(name) for name in _OF_THRESHOLDS})  # refuses what will not do
    fingerprint = model.fingerprint(tagger)
    of_rows = {
        "names": list(names),
        "model": model.name,
        "fingerprint": fingerprint,
        "version": __version__,
        "format": form,
        "all_scores": all_scores,
        "known": None if known is None else dict(known),
        "batch_size": batch_size,
        "block_size": options.block_size,
        "image_column": options.image_column,
        **settings,
    }
    plan = open_plan(store, of_rows)
    done = None if plan is None else DoneBlocks(store, plan, form)
    size = tagger.config.image_size
    del tagger
    if plan is not None and done is not None and not done.left():
        done.finish()
        return _count(done)
    of_image = 3 * size[0] * size[1]
    memory = store_bytes(options.block_size * of_image, options.workers or options.cores or os.cpu_count() or 1)
    with connected(options.address, memory, options.cores) as ray:
        if plan is None:
            plan = write_plan(store, of_rows, options.block_size, _listed(ray, names, options.image_column))
            done = DoneBlocks(store, plan, form)
        assert done is not None
        writing = Writing(out, form, all_scores, known, {"batch_size": batch_size, **settings})
        decode = Decode(out, size, options.image_column, _DECODERS)
        before = sum(_count(done))
        try:
            with progress_of("tagging", plan.images, progress) as tell:
                tell(before)
                results = run_blocks(
                    ray,
                    decode,
                    Score,
                    (model, fingerprint, __version__, writing),
                    done.left(),
                    rows=options.block_size,
                    of_image=of_image,
                    workers=options.workers,
                    on_cpu=model.device == "cpu",
                )
                for batch in results:
                    for each in zip(batch["block"], batch["tagged"], batch["failed"], strict=True):
                        done.add(Done(*map(int, each)))
                    tell(int(sum(batch["tagged"]) + sum(batch["failed"])))
        except ray.exceptions.RayError as error:
            raise _as_ours(error, done, ray) from None
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"stopped; {_so_far(done)}") from None
        finally:
            done.note()
    done.finish()
    return _count(done)


_OF_THRESHOLDS = ("threshold", "precision_at_least", "recall_at_least")


def _count(done: DoneBlocks) -> Count:
    blocks = done.blocks.values()
    return Count(sum(each.tagged for each in blocks), sum(each.failed for each in blocks))


def _listed(ray: Any, names: Sequence[str], column: str | None) -> Iterator[pyarrow.Table]:
    """List a corpus: files here, shards and tables by tasks, in order."""
    found = list(find_inputs(names))
    containers = [each.path for each in found if isinstance(each, Container)]
    listed: Iterator[pyarrow.Table] = iter(())
    if containers:
        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        rows = [{"path": path} for path in containers]
        tables = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _ListContainer(column), batch_size=None, batch_format="pyarrow", ray_remote_args_fn=_retried_tasks
        )
        listed = iter(tables.iter_batches(batch_size=None, batch_format="pyarrow"))
    waiting: list[str | NotAnImage] = []
    for each in found:
        if not isinstance(each, Container):
            waiting.append(each)
        if waiting and (isinstance(each, Container) or len(waiting) == _LISTED):
            yield table_of([row_of(file) for file in waiting])
            waiting = []
        if isinstance(each, Container):
            yield next(listed).cast(LISTING)
    if waiting:
        yield table_of([row_of(file) for file in waiting])
    if containers:
        context.execution_options.preserve_order = False


@dataclasses.dataclass(frozen=True)
class _ListContainer:
    """Lists one shard or table."""

    column: str | None

    def __call__(self, batch: pyarrow.Table) -> pyarrow.Table:
        (path,) = batch["path"].to_pylist()
        return list_container(path, self.column)


def _retried_tasks() -> dict[str, Any]:
    return {"max_retries": _RETRIES}


def _as_ours(error: Any, done: DoneBlocks, ray: Any) -> Exception:
    """Return what went wrong in a worker as an error of one line, which says that the same command goes on."""
    cause = what_failed(error, ray)
    if isinstance(cause, ValueError | ImportError):
        return cause
    what = (str(cause).strip().splitlines() or [type(cause).__name__])[-1]
    if isinstance(cause, OSError) and cause.strerror:
        what = f"{cause.filename or done.store.root}: {cause.strerror}"
    return OSError(f"{what}; {_so_far(done)}")


def _so_far(done: DoneBlocks) -> str:
    return f"{sum(_count(done)):,} of {done.plan.images:,} images are done, the same command goes on with the rest"
