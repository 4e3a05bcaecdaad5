"""How fast a head is, and how much memory it takes: each way to compute it, against the others and the floor."""

from typing import TYPE_CHECKING

from contextcaps.lazy_names import lazy_names

if TYPE_CHECKING:
    from contextcaps.experiments.bench.bench import Bench, run_bench, show_bench
    from contextcaps.experiments.bench.settings import BenchSettings

__all__ = [
    "Bench",
    "BenchSettings",
    "run_bench",
    "show_bench",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "bench": ["Bench", "run_bench", "show_bench"],
        "settings": ["BenchSettings"],
    },
)
