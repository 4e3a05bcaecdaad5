"""Where images and labels come from: each kind of source one file, all giving the same `Sample`."""

from contextcaps.data.problems import DataError, Problem, Problems
from contextcaps.data.sample import Boxes, Sample
from contextcaps.data.source import Source, Subset, open_source, register_source, source_kinds

__all__ = [
    "Boxes",
    "DataError",
    "Problem",
    "Problems",
    "Sample",
    "Source",
    "Subset",
    "open_source",
    "register_source",
    "source_kinds",
]
