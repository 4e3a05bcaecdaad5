"""Tag images with a trained model, from Python and from the command line."""

from contextcaps.tagging.files import Destination
from contextcaps.tagging.formats import Output
from contextcaps.tagging.gallery import Gallery, JudgedTag, check_page, judge, write_gallery
from contextcaps.tagging.inputs import NotAnImage, count_images, find_images
from contextcaps.tagging.journal import Journal, model_fingerprint
from contextcaps.tagging.known import parse_known
from contextcaps.tagging.output import Count, check_output, open_output, tagged_images, write_tags
from contextcaps.tagging.tagger import Tag, Tagger, Tagging, load

__all__ = [
    "Count",
    "Destination",
    "Gallery",
    "Journal",
    "JudgedTag",
    "NotAnImage",
    "Output",
    "Tag",
    "Tagger",
    "Tagging",
    "check_output",
    "check_page",
    "count_images",
    "find_images",
    "judge",
    "load",
    "model_fingerprint",
    "open_output",
    "parse_known",
    "tagged_images",
    "write_gallery",
    "write_tags",
]
