"""Try cases of one kind, one after the other, in a process of their own."""

import multiprocessing
import os
import random
import resource
import shutil
import sys
import time
import warnings
from pathlib import Path

import torch
from whole_files import Opener, write_kinds

from contextcaps.cli import dispatch
from contextcaps.data import decoding_process
from contextcaps.out_of_memory import is_out_of_memory

__all__ = ["work"]

BYTES = 2 * 2**30


def attempt(opener: Opener, path: Path) -> tuple[str, str]:
    """Open a changed file; return what came of it, and the error."""
    try:
        return opener(path), ""
    except (ValueError, OSError, ImportError) as error:  # what commands print in one line
        longest = max(map(len, dispatch._message(error).split("\n")))
        return ("refused" if longest < 2100 else "long message"), f"{type(error).__name__}: {error}"
    except Exception as error:
        return ("refused" if is_out_of_memory(error) else "traceback"), f"{type(error).__name__}: {error}"


def remove(path: Path) -> None:
    """Remove whatever is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def peak_elsewhere() -> int:
    """Return the most bytes that a process which decodes images has held."""
    peaks = [peak_of(each.process.pid) for each in decoding_process._idle]
    return max(0, *peaks, 1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)


def peak_of(process: int | str) -> int:
    """Return the most bytes that a process has held."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


def peak_from_now() -> int:
    """Begin to watch this process's peak anew; return the bytes that it holds now."""
    Path("/proc/self/clear_refs").write_text("5")
    return peak_of("self")


def work(kind: str, numbers: list[int], seed: int, home: Path, results: "multiprocessing.Queue[tuple]") -> None:
    """Try the cases of these numbers, one after the other."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())  # libtiff writes there itself
    attacked = write_kinds(home, kind)[kind]
    path, opener = attacked.path, attacked.opener
    kept = {each: each.read_bytes() for each in path.parent.iterdir() if each.is_file()}
    outcome, error = attempt(opener, path)  # what is imported late is imported
    if outcome != "used":
        raise RuntimeError(f"{kind}: the whole file is {outcome}: {error}")
    for number in numbers:
        for each, before in kept.items():
            each.parent.mkdir(parents=True, exist_ok=True)
            remove(each)
            each.write_bytes(before)
        attacked.change(path, random.Random(f"{seed} {kind} {number}"))
        results.put((number, "begun", "", 0.0))
        begun = peak_from_now()  # what writing the file took is not the program's
        start = time.perf_counter()
        outcome, error = attempt(opener, path)
        used = max(peak_of("self") - begun, peak_elsewhere())
        results.put((number, "memory" if used > BYTES else outcome, error, time.perf_counter() - start))
    results.put((-1, "ended", "", 0.0))
