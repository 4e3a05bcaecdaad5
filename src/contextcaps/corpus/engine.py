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
from contextcaps.corpus.store import Store
from contextcaps.corpus.work import Decode, Model, Score, Writing
from contextcaps.data.progress import progress_of
from contextcaps.tagging.formats import Format
from contextcaps.tagging.inputs import NotAnImage
from contextcaps.tagging.output import Count
from contextcaps.version import __version__

__all__ = ["CorpusOptions", "tag_corpus"]

_LISTED = 10_000  # files that are listed at once
_RETRIES = 5  # of a task whose worker died; more deaths are its images' own doing
# Actors have Ray Data's default, any number: while a machine that died is still called, five retries are soon used up.
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
    of_block = options.block_size * 3 * size[0] * size[1]
    with connected(options.address, _store_bytes(of_block, options), options.cores) as ray:
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
                for each in _results(ray, decode, (model, fingerprint, __version__, writing), options, done.left()):
                    done.add(each)
                    tell(each.tagged + each.failed)
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


def _store_bytes(of_block: int, options: CorpusOptions) -> int:
    """Return the memory for decoded blocks: some for each worker. With less than 1 GiB Ray Data may start no task."""
    workers = options.workers or options.cores or os.cpu_count() or 1
    return max(2**30, min(8 * (workers + 1) * of_block, 2**34))


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


def _results(
    ray: Any, decode: Decode, of_actor: tuple[Any, ...], options: CorpusOptions, blocks: Sequence[int]
) -> Iterator[Done]:
    """Yield the blocks as they are done, in any order."""
    from contextcaps.corpus.datasource import BlockDatasource  # its base class is Ray's

    resources = ray.cluster_resources()
    gpus = 0 if of_actor[0].device == "cpu" else int(resources.get("GPU", 0))
    workers = min(len(blocks), options.workers or gpus or max(1, int(resources.get("CPU", 1))))
    # Without GPUs each core has a model at three quarters and decoding at one: neither can take the other's place.
    share = {"num_cpus": 1.0, "num_gpus": 1.0} if gpus else {"num_cpus": 0.75}
    decoding = 1.0 if gpus else 0.25
    height, width = decode.size
    dataset = ray.data.read_datasource(
        BlockDatasource(decode, blocks, options.block_size, 3 * height * width),
        override_num_blocks=len(blocks),
        num_cpus=decoding,
        ray_remote_args={"max_retries": _RETRIES},
    )
    dataset = dataset.map_batches(
        Score,
        fn_constructor_args=of_actor,
        batch_size=None,
        compute=ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=2),
        **share,
    )
    for batch in dataset.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=0):
        for block, tagged, failed in zip(batch["block"], batch["tagged"], batch["failed"], strict=True):
            yield Done(int(block), int(tagged), int(failed))


def _retried_tasks() -> dict[str, Any]:
    return {"max_retries": _RETRIES}


def _as_ours(error: Any, done: DoneBlocks, ray: Any) -> Exception:
    """Return what went wrong in a worker as an error of one line, which says that the same command goes on."""
    cause: BaseException = error
    while isinstance(cause, ray.exceptions.RayTaskError) and isinstance(getattr(cause, "cause", None), BaseException):
        cause = cause.cause
    if isinstance(cause, ValueError | ImportError):
        return cause
    what = (str(cause).strip().splitlines() or [type(cause).__name__])[-1]
    if isinstance(cause, OSError) and cause.strerror:
        what = f"{cause.filename or done.store.root}: {cause.strerror}"
    return OSError(f"{what}; {_so_far(done)}")


def _so_far(done: DoneBlocks) -> str:
    return f"{sum(_count(done)):,} of {done.plan.images:,} images are done, the same command goes on with the rest"
