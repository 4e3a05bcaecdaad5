"""Run blocks through Ray Data: tasks that decode, actors that hold a model, any number of kills."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

__all__ = ["run_blocks", "store_bytes", "what_failed"]

_RETRIES = 5  # of a task whose worker died; more deaths are its images' own doing
# Actors have Ray Data's default, any number: while a machine that died is still called, five retries are soon used up.


def store_bytes(of_block: int, workers: int) -> int:
    """Return the memory for decoded blocks: some for each worker. With less than 1 GiB Ray Data may start no task."""
    return max(2**30, min(8 * (workers + 1) * of_block, 2**34))


def run_blocks(
    ray: Any,
    decode: Callable[[int], dict[str, np.ndarray]],
    actor: type,
    of_actor: tuple[Any, ...],
    blocks: Sequence[int],
    *,
    rows: int,
    of_image: int,
    workers: int | None = None,
    on_cpu: bool = False,
) -> Iterator[dict[str, np.ndarray]]:
    """Yield what actors make of blocks, as they are done, in any order; each block once.

    Args:
        ray: the module, connected.
        decode: from a block's number to columns, with a row for each image.
        actor: class of the actors, which are called with these columns and return others.
        of_actor: arguments of its constructor.
        blocks: their numbers.
        rows: images of a block.
        of_image: bytes of a decoded image.
        workers: actors; by default one for each GPU, or for each core where there is none.
        on_cpu: use no GPU.
    """
    from contextcaps.corpus.datasource import BlockDatasource  # its base class is Ray's

    resources = ray.cluster_resources()
    gpus = 0 if on_cpu else int(resources.get("GPU", 0))
    workers = min(len(blocks), workers or gpus or max(1, int(resources.get("CPU", 1))))
    # Shares of a core sum to one, so that neither models nor decoding can take the other's place, even on one core.
    share = {"num_cpus": 0.25, "num_gpus": 1.0} if gpus else {"num_cpus": 0.75}
    dataset = ray.data.read_datasource(
        BlockDatasource(decode, blocks, rows, of_image),
        override_num_blocks=len(blocks),
        num_cpus=0.75 if gpus else 0.25,
        ray_remote_args={"max_retries": _RETRIES},
    )
    dataset = dataset.map_batches(
        actor,
        fn_constructor_args=of_actor,
        batch_size=None,
        compute=ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=2),
        **share,
    )
    yield from dataset.iter_batches(batch_size=None, batch_format="numpy", prefetch_batches=0)


def what_failed(error: Any, ray: Any) -> BaseException:
    """Return what went wrong in a worker, out of what Ray has wrapped it in."""
    cause: BaseException = error
    while isinstance(cause, ray.exceptions.RayTaskError) and isinstance(getattr(cause, "cause", None), BaseException):
        cause = cause.cause
    return cause
