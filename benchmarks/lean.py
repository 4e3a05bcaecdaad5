"""One training step of the capsule head on a CPU, with all votes in memory and with a few at a time: time and memory.

    python benchmarks/lean.py --batch 16

Each way runs in a process of its own, since a process's peak memory never falls again.
"""

import argparse
import resource
import subprocess
import sys
import time

import torch

from contextcaps.models.head import CapsuleHead
from contextcaps.models.registry import model_config

HEADS = {
    "capsnet": ("capsnet", {}),
    "contextcaps": ("contextcaps", {}),
    "contextcaps, routing joined": (
        "contextcaps",
        {"aggregation": "routing+correlation", "initial_routing": "couplings"},
    ),
}


def measure(head: str, backend: str, batch: int, classes: int, steps: int) -> tuple[float, float]:
    """Seconds of the fastest step, and the peak of memory above what was there before the first, in GiB."""
    torch.manual_seed(0)
    preset, settings = HEADS[head]
    # The paper's grid: K = 6 · 6 · 32 = 1152 capsules with A = 8, and I = 16.
    config = model_config(preset, classes, 28, "paper", backend=backend, types=32, **settings)
    network = CapsuleHead(config, 256, (9, 2, 0), (6, 6))
    features = torch.randn(batch, 256, 20, 20)

    def step() -> None:
        network(features.clone().requires_grad_()).scores.square().sum().backward()
        for parameter in network.parameters():
            parameter.grad = None

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    times = []
    for _ in range(steps):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    return min(times), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--classes", type=int, default=150)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--one", nargs=2, metavar=("HEAD", "BACKEND"), help="measure this one only, in this process")
    arguments = parser.parse_args()
    if arguments.one:
        print(*measure(*arguments.one, arguments.batch, arguments.classes, arguments.steps))
        return
    print("| head | plain | lean | time, plain : lean | memory, plain : lean |\n|---|---|---|---|---|")
    for head in HEADS:
        found = []
        for backend in ("plain", "lean"):
            words = [sys.executable, __file__, "--one", head, backend]
            words += [f"--{name}={getattr(arguments, name)}" for name in ("batch", "classes", "steps")]
            printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
            found.append(tuple(map(float, printed.split())))
        (plain, plain_memory), (lean, lean_memory) = found
        print(
            f"| {head} | {plain:.2f} s, {plain_memory:.2f} GiB | {lean:.2f} s, {lean_memory:.2f} GiB "
            f"| {plain / lean:.1f} | {plain_memory / lean_memory:.1f} |"
        )


if __name__ == "__main__":
    main()
