"""Runs side by side: what they were measured at, how sure one can be of a difference, and pictures of both."""

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
