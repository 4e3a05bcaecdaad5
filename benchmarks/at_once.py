"""Training steps a second of several processes on one GPU together, with NVIDIA's process service (MPS) and without.

    mkdir -p /tmp/mps && CUDA_MPS_PIPE_DIRECTORY=/tmp/mps CUDA_MPS_LOG_DIRECTORY=/tmp/mps nvidia-cuda-mps-control -d
    python benchmarks/at_once.py --processes 14 --pipe /tmp/mps

Each process trains a network of 19 convolutions on 64 random images of 64×64 px, in bf16 with AdamW: many small
kernels, as the networks have that `contextcaps ablate` runs side by side.
"""

import argparse
import os
import subprocess
import sys
import time

import torch
from torch import nn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 4, 14], help="how many at once")
    parser.add_argument("--pipe", default="/tmp/mps", help="where the process service listens")  # noqa: S108
    parser.add_argument("--begin", type=float, help="of one process, used by the others: when to begin counting")
    parser.add_argument("--seconds", type=float, default=3, help="to count steps for")
    arguments = parser.parse_args()
    if arguments.begin is not None:
        print(count_steps(arguments.begin, arguments.seconds))
        return
    for name, pipe in (("without", None), ("with", arguments.pipe)):
        for processes in arguments.processes:
            rates = side_by_side(processes, pipe, arguments.seconds)
            print(f"{name} the service, {processes} processes: {sum(rates):.0f} steps/s together", flush=True)


def side_by_side(processes: int, pipe: str | None, seconds: float) -> list[float]:
    """Steps a second of each."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("CUDA_MPS_")}
    environment["OMP_NUM_THREADS"] = "1"
    if pipe is not None:
        environment["CUDA_MPS_PIPE_DIRECTORY"] = pipe
    begin = time.time() + 15 + processes  # so long they may take to start
    words = [sys.executable, __file__, "--begin", str(begin), "--seconds", str(seconds)]
    running = [subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    return [float(process.communicate()[0]) for process in running]


def count_steps(begin: float, seconds: float) -> float:
    """Steps a second, counted from a moment that all processes share; before it they train as well."""
    device = torch.device("cuda")
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 3, 2, 1)]
    for index in range(18):
        layers += [nn.BatchNorm2d(64), nn.ReLU(), nn.Conv2d(64, 64, 3, 2 if index in (5, 10) else 1, 1)]
    network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 171)).to(device)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    images = torch.rand(64, 3, 64, 64)
    targets = torch.rand(64, 171, device=device)
    steps, begun = 0, time.time()
    while time.time() < begin + seconds:
        if time.time() < begin:
            steps, begun = 0, time.time()
        with torch.autocast("cuda", torch.bfloat16):
            logits = network(images.to(device))  # [B, J]
        nn.functional.binary_cross_entropy_with_logits(logits.float(), targets).backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    torch.cuda.synchronize()
    return steps / (time.time() - begun)


if __name__ == "__main__":
    main()
