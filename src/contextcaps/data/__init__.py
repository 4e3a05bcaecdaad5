"""Read images and labels from sources of many kinds, all as the same `Sample`, and make batches of them."""

from typing import TYPE_CHECKING

from contextcaps.lazy_names import lazy_names

if TYPE_CHECKING:
    from contextcaps.data.augmentation import Augmentation
    from contextcaps.data.augmentation_config import AugmentationConfig
    from contextcaps.data.images import BadImage, decode
    from contextcaps.data.loading import Batch, PreparedLoader, StreamLoader
    from contextcaps.data.prepared import Prepared, prepare
    from contextcaps.data.problems import DataError, Problem, Problems
    from contextcaps.data.sample import Boxes, Sample
    from contextcaps.data.source import Source, Subset
    from contextcaps.data.source_registry import open_source, register_source, source_kinds
    from contextcaps.data.splits import open_splits, split_source

__all__ = [
    "Augmentation",
    "AugmentationConfig",
    "BadImage",
    "Batch",
    "Boxes",
    "DataError",
    "Prepared",
    "PreparedLoader",
    "Problem",
    "Problems",
    "Sample",
    "Source",
    "StreamLoader",
    "Subset",
    "decode",
    "open_source",
    "open_splits",
    "prepare",
    "register_source",
    "source_kinds",
    "split_source",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "augmentation": ["Augmentation"],
        "augmentation_config": ["AugmentationConfig"],
        "images": ["BadImage", "decode"],
        "loading": ["Batch", "PreparedLoader", "StreamLoader"],
        "prepared": ["Prepared", "prepare"],
        "problems": ["DataError", "Problem", "Problems"],
        "sample": ["Boxes", "Sample"],
        "source": ["Source", "Subset"],
        "source_registry": ["open_source", "register_source", "source_kinds"],
        "splits": ["open_splits", "split_source"],
    },
)
