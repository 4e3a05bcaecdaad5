"""Latency of whole networks on a GPU: eager, compiled, and in a CUDA graph, beside `gap` on the same backbone.

Weights are those of the start: they do not matter for time. The aim for `contextcaps` is 1.3 times gap's latency.

python benchmarks/whole_network.py --models contextcaps gap --backbone lite2 --image-size 224 --classes 80
"""

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

import contextcaps

Call = Callable[[], Tensor]


def ways_of(network: torch.nn.Module, images: Tensor, compiled: bool) -> dict[str, Call]:
    """Return a way's name → a call that scores the images."""
    calls: dict[str, Call] = {"eager": lambda: network(images).scores}
    if compiled:
        fast = torch.compile(network, mode="max-autotune-no-cudagraphs")
        calls["compiled"] = lambda: fast(images).scores
    if images.is_cuda:
        calls["CUDA graph"] = captured(calls["compiled" if compiled else "eager"])
    return calls


def captured(call: Call) -> Call:
    """Return a call that replays a CUDA graph of another, on the images that were in it."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = call()

    def replay() -> Tensor:
        graph.replay()
        return found

    return replay


def milliseconds(call: Call, repetitions: int) -> float:
    """Return the median time of a call, with a synchronisation after each."""

    def wait() -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    times = []
    for _ in range(5):
        call()
    for _ in range(repetitions):
        wait()
        began = time.perf_counter()
        call()
        wait()
        times.append(1e3 * (time.perf_counter() - began))
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=["contextcaps", "gap"], help="the last is compared with")
    parser.add_argument("--backbone", default="lite2")
    parser.add_argument("--image-size", type=int, default=224)
    parser.add_argument("--classes", type=int, default=80)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 128])
    parser.add_argument("--precision", choices=["fp32", "bf16", "fp16"], default="fp32")
    parser.add_argument("--repetitions", type=int, default=50)
    parser.add_argument("--no-compile", action="store_true")
    words = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[words.precision]
    print(
        f"{torch.cuda.get_device_name() if device == 'cuda' else 'CPU'}, torch {torch.__version__}, {words.precision}"
    )
    print("| batch | computed | " + " | ".join(f"{name}, ms" for name in words.models) + " | first : last |")
    print("|---" * (len(words.models) + 3) + "|")
    for batch in words.batches:
        taken: dict[str, list[float]] = {}
        for name in words.models:
            network = contextcaps.create_model(name, words.classes, words.image_size, words.backbone)
            network = network.to(device, dtype).eval().folded()
            images = torch.randint(0, 256, (batch, 3, words.image_size, words.image_size), dtype=torch.uint8).to(device)
            with torch.inference_mode():
                for way, call in ways_of(network, images, not words.no_compile).items():
                    taken.setdefault(way, []).append(milliseconds(call, words.repetitions))
        for way, each in taken.items():
            shown = " | ".join(f"{one:.2f}" for one in each)
            print(f"| {batch} | {way} | {shown} | {each[0] / each[-1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
