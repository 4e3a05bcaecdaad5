"""What a user's own process takes: the time to its first tag, and the memory that tagging many images needs."""

import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

__all__ = ["cold_start", "peak_of_tagging"]

_FIRST_TAG = """
import sys, contextcaps
model, device, runtime, image = sys.argv[1:]
(tagging,) = contextcaps.load(model, device, runtime).tag(image, on_bad="stop")
print(tagging, flush=True)
"""
"""What a new process does: as `contextcaps tag`, which has no flag for who computes."""


_MANY_TAGS = """
import sys, contextcaps
model, device, runtime, *images = sys.argv[1:]
tagger = contextcaps.load(model, device, runtime)
for _ in tagger.tag_stream(images):
    pass
(line,) = [line for line in open("/proc/self/status") if line.startswith("VmHWM")]
print(line.split()[1], flush=True)
"""


def peak_of_tagging(model: str, files: Sequence[Path], device: str, runtime: str) -> float:
    """Return the most memory that a new process has resident when it tags many images; NaN where Linux is not there."""
    if not Path("/proc/self/status").exists():
        return math.nan
    command = [sys.executable, "-c", _MANY_TAGS, model, device, runtime, *map(str, files)]
    return 1024.0 * int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def cold_start(model: str, image: Path, device: str, runtime: str) -> float:
    """Return the seconds from the start of a new process to the tags of its first image.

    Raises:
        ValueError: it failed.
    """
    command = [sys.executable, "-c", _FIRST_TAG, model, device, runtime, str(image)]
    with tempfile.TemporaryFile() as errors:
        began = time.perf_counter()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors) as process:
            assert process.stdout is not None
            row = process.stdout.readline()
            taken = time.perf_counter() - began
        if process.returncode or not row:
            errors.seek(0)
            (*_, last) = errors.read().decode(errors="replace").splitlines() or [row.decode(errors="replace")]
            raise ValueError(f"{image}: it could not be tagged with {model}: {last.strip()}")
    return taken
