"""How fast a head is, and how much memory it takes: each way to compute it, against the others and the floor."""

from contextcaps.experiments.bench.bench import Bench, BenchSettings, run_bench, show_bench

__all__ = ["Bench", "BenchSettings", "run_bench", "show_bench"]
