"""What torchrun's restarts (--max-restarts) need: whose run this is, and a meeting place for each attempt.

torchrun's agent keeps one store for all attempts (torch 2.13, https://github.com/pytorch/pytorch/issues/135712). In it
Gloo finds the addresses of processes that are dead, and connects to nobody. So the processes of an attempt first agree
on a name of their own, and meet under it.
"""

import os
import platform
import secrets
import time

import torch
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from contextcaps.training.config import TrainConfig

__all__ = ["elastic_run", "is_restart", "join_processes", "meeting_place", "require_named_run"]


def elastic_run() -> str | None:
    """Return what tells this torchrun, over all its restarts, from any other; None for processes it did not start."""
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    # Without --rdzv-id all are called "none": then it is the agent that started this process.
    return f"{platform.node()}-{os.getppid()}" if name == "none" else name


def is_restart() -> bool:
    """Return whether torchrun starts this process again after a failure (--max-restarts)."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def require_named_run(config: TrainConfig) -> None:
    """Refuse restarts by torchrun for a run without a folder of its own: each would begin anew in another one.

    Raises:
        ValueError: there is no such folder.
    """
    if int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")) > 0 and config.out is None:
        raise ValueError("out: with torchrun --max-restarts name the run's folder, --out RUN: a restart goes on there")


def join_processes(gpu: bool) -> None:
    """Join the processes that torchrun started, where its agent keeps the store; do nothing otherwise."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    agent = TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    torch.distributed.init_process_group(
        "nccl" if gpu else "gloo",
        store=meeting_place(agent, rank, world_size),
        rank=rank,
        world_size=world_size,
        device_id=torch.device("cuda", int(os.environ["LOCAL_RANK"])) if gpu else None,
    )


def meeting_place(store: Store, rank: int, world_size: int) -> Store:
    """Return a part of a store that only the processes of this attempt use.

    The number of restarts would not do as its name: each node counts its own. So every process calls with a name that
    nobody had before, and rank 0 answers each call with its own. What dead processes called is answered in vain.

    Args:
        store: which all attempts share; no process of an earlier one is alive.
        rank: of this process.
        world_size: of this attempt.

    Raises:
        TimeoutError: some process did not call.
    """
    own = secrets.token_hex(8)
    if rank > 0:
        store.set(f"contextcaps/call/{rank}", own)
        name = store.get(f"contextcaps/answer/{own}").decode()  # waits for it
        store.set(f"contextcaps/heard/{name}/{rank}", "")
        return PrefixStore(f"contextcaps/{name}", store)
    patience = store.timeout.total_seconds()  # type: ignore[attr-defined]
    missing, until = set(range(1, world_size)), time.monotonic() + patience
    while missing:
        for other in sorted(missing):
            if store.check([f"contextcaps/heard/{own}/{other}"]):
                missing.remove(other)
            elif store.check([f"contextcaps/call/{other}"]):
                store.set(f"contextcaps/answer/{store.get(f'contextcaps/call/{other}').decode()}", own)
        if missing and time.monotonic() > until:
            raise TimeoutError(f"expected {world_size} processes, but of rank {min(missing)} nothing was heard")
        time.sleep(0.02)
    return PrefixStore(f"contextcaps/{own}", store)
