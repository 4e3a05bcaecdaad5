"""Something measured in a process of its own: a CPU's memory that was used once stays with the process that used it.

The processes are forked from one that has imported everything and computed nothing, so that each starts at once.
"""

import contextlib
import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from contextcaps.experiments.bench.ways import OUT_OF_MEMORY, Result

__all__ = ["alone"]


def alone(work: Callable[..., Result], *arguments: Any) -> Result:
    """`work(*arguments)` in a process of its own; one that dies is a result, too."""
    methods = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if "forkserver" in methods:
        context.set_forkserver_preload(["__main__", "contextcaps.experiments.bench.networks"])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, work, arguments))
    process.start()
    sender.close()
    try:
        result = receiver.recv()
    except EOFError:
        result = None
    except BaseException:
        process.terminate()
        raise
    finally:
        process.join()
        receiver.close()
    if result is not None:
        return result
    if process.exitcode == -signal.SIGKILL:
        return Result(None, reason=f"{OUT_OF_MEMORY} (the system ended the process)")
    return Result(None, reason=f"the process ended with code {process.exitcode}")


def _send(sender: Connection, work: Callable[..., Result], arguments: tuple[Any, ...]) -> None:
    with contextlib.suppress(OSError):  # if memory runs out, this process is the one to go
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with contextlib.suppress(KeyboardInterrupt):  # the one who asked tells of it
        sender.send(work(*arguments))
    sender.close()
