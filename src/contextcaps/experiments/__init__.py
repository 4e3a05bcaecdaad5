"""Runs side by side: what they were measured at, how sure one can be of a difference, and pictures of both."""

from typing import TYPE_CHECKING

from contextcaps.lazy_names import lazy_names

if TYPE_CHECKING:
    from contextcaps.experiments.comparison import ComparedRun, Comparison, Difference, compare
    from contextcaps.experiments.demo import Demo, run_demo, show_demo
    from contextcaps.experiments.demo_settings import DemoSettings
    from contextcaps.experiments.gallery import JudgedTag, TaggedImage, judge, write_gallery

__all__ = [
    "ComparedRun",
    "Comparison",
    "Demo",
    "DemoSettings",
    "Difference",
    "JudgedTag",
    "TaggedImage",
    "compare",
    "judge",
    "run_demo",
    "show_demo",
    "write_gallery",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "comparison": ["ComparedRun", "Comparison", "Difference", "compare"],
        "demo": ["Demo", "run_demo", "show_demo"],
        "demo_settings": ["DemoSettings"],
        "gallery": ["JudgedTag", "TaggedImage", "judge", "write_gallery"],
    },
)
