"""Count the files of contextcaps whose functions run when a network is trained on a table, and when an image is tagged.

    python benchmarks/files_run.py --list

Imports do not count: a file counts once one of its functions has run. A newcomer who follows either opens these.
"""

import argparse
import inspect
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import CodeType

import numpy as np
import torch
from PIL import Image

import contextcaps

ROOT = Path(contextcaps.__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="name the files")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run, cache, table = Path(folder, "run"), Path(folder, "cache"), write_table(Path(folder))
        settings = {"image_size": 32, "epochs": 1, "batch_size": 32, "accelerator": "cpu", "precision": "fp32"}

        def train() -> None:
            contextcaps.train(data=f"table:{table}", out=str(run), cache=str(cache), progress=False, **settings)

        def tag() -> None:
            contextcaps.load(run, "cpu").tag(Path(folder, "0.png"))

        for name, command in (("train", train), ("tag", tag)):
            files = files_of(command)
            print(f"{name}: {len(files)} files")
            if arguments.list:
                print(*(f"  {each}" for each in files), sep="\n")


def write_table(folder: Path) -> Path:
    """Write 160 small images of noise and a table of their labels."""
    rows = ["file,labels"]
    for number in range(160):
        pixels = np.random.default_rng(number).integers(256, size=(32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        rows.append(f"{number}.png,{('sea', 'bed', 'sea;bed')[number % 3]}")
    path = folder / "table.csv"
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return path


def files_of(command: Callable[[], None]) -> list[str]:
    """Run a function and return the library's files whose functions ran."""
    seen: set[str] = set()

    def note(frame: object, event: str, _: object) -> None:
        code: CodeType = frame.f_code  # type: ignore[attr-defined]
        # Modules and classes run when they are imported; only functions have fast local variables.
        if code.co_filename.startswith(str(ROOT)) and code.co_flags & inspect.CO_OPTIMIZED:
            seen.add(str(Path(code.co_filename).relative_to(ROOT)))

    sys.setprofile(note)
    try:
        command()
    finally:
        sys.setprofile(None)
    return sorted(seen)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
