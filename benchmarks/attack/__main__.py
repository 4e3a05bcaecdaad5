"""Attack the program with damaged and hostile files, each with limits of time and memory.

    python benchmarks/attack --cases 5000 --seed 0

Each kind begins with a whole file that the program itself or a library has written. A case changes its bytes
(`mutations.mutated`), a value in it (`with_a_changed_value`), or what stands in its place (`put_elsewhere`); or writes
one that is made to do harm (`hostile`). It is then opened as a user would. What may happen: it is used, or refused with
an error of the kind that commands print in one line. What may not: any other error (a traceback), more than 30 seconds,
more than 2 GB above the start, code that runs, or use of changed weights, labels or pixels where there are checksums.
Such cases are kept under --keep, to be looked at.
"""

import argparse
import collections
import multiprocessing
import tempfile
from pathlib import Path

from cases import work
from whole_files import write_kinds

SECONDS = 30


def attack(kind: str, count: int, seed: int, keep: Path | None) -> tuple[collections.Counter[str], float]:
    """Try some cases of a kind in a process of its own, which is killed at a hang, and begun anew after it."""
    counts, slowest, left = collections.Counter[str](), 0.0, list(range(count))
    context = multiprocessing.get_context("forkserver")  # which has imported all that a process needs
    context.set_forkserver_preload(["cases"])
    while left:
        with tempfile.TemporaryDirectory() as folder:
            results = context.Queue()
            process = context.Process(target=work, args=(kind, left, seed, Path(folder), results), daemon=True)
            process.start()
            current, outcome = -1, ""
            while outcome != "ended":
                try:
                    number, outcome, error, seconds = results.get(timeout=SECONDS if current >= 0 else 120)
                except Exception:  # queue.Empty
                    number, outcome, error, seconds = current, "hang" if process.is_alive() else "crash", "", SECONDS
                    process.kill()
                if outcome in ("hang", "crash") and current < 0:
                    raise RuntimeError(f"{kind}: between two cases: {outcome}")
                if outcome == "begun":
                    current = number
                    continue
                if outcome == "ended":
                    left = []
                    break
                counts[outcome] += 1
                slowest, left = max(slowest, seconds), [each for each in left if each != number]
                current = -1
                if outcome not in ("used", "refused"):
                    print(f"  {kind}, case {number}: {outcome} {error[:300]}", flush=True)
                    if keep is not None:
                        keep.mkdir(parents=True, exist_ok=True)
                        (keep / f"{kind}-{number}.txt".replace(" ", "-")).write_text(f"{outcome}\n{error}\n")
                if outcome in ("hang", "crash"):
                    break
            process.join(5)
    return counts, slowest


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=5000, help="in all, the same number of each kind")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="+", help="only those whose names contain one of these words")
    parser.add_argument("--keep", type=Path, help="folder for what should not have happened")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kinds = [
            each for each in write_kinds(Path(folder)) if not arguments.kinds or any(w in each for w in arguments.kinds)
        ]
    count = -(-arguments.cases // len(kinds))
    print("| kind | cases | used | refused | other | slowest |\n|---|---|---|---|---|---|", flush=True)
    total, bad = 0, 0
    for kind in kinds:
        counts, slowest = attack(kind, count, arguments.seed, arguments.keep)
        others = {name: times for name, times in counts.items() if name not in ("used", "refused")}
        total, bad = total + counts.total(), bad + sum(others.values())
        shown = ", ".join(f"{times} {name}" for name, times in others.items()) or "0"
        print(
            f"| {kind} | {counts.total()} | {counts['used']} | {counts['refused']} | {shown} | {slowest:.2f} s |",
            flush=True,
        )
    print(f"\n{total} cases, {bad} of them as they should not be")
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
