"""Tag images with a trained model, from Python and from the command line."""

from contextcaps.tagging.inputs import NotAnImage, count_images, find_images
from contextcaps.tagging.known import parse_known
from contextcaps.tagging.output import Count, Output, check_output, open_output, write_tags
from contextcaps.tagging.tagger import Tag, Tagger, Tagging, load

__all__ = [
    "Count",
    "NotAnImage",
    "Output",
    "Tag",
    "Tagger",
    "Tagging",
    "check_output",
    "count_images",
    "find_images",
    "load",
    "open_output",
    "parse_known",
    "write_tags",
]
