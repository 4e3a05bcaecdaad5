"""Tag images with a trained model, from Python and from the command line."""

from typing import TYPE_CHECKING

from contextcaps.lazy_names import lazy_names

if TYPE_CHECKING:
    from contextcaps.tagging.audit import Audit, Judge, Suspicion, audit_labels
    from contextcaps.tagging.audit_files import audit_table, read_ticked, write_suspicions
    from contextcaps.tagging.audit_page import write_audit
    from contextcaps.tagging.explanation import ClassExplanation, Explanation, LengthExplanation, Move
    from contextcaps.tagging.explanation_page import write_explanation
    from contextcaps.tagging.files import Destination
    from contextcaps.tagging.formats import Output
    from contextcaps.tagging.gallery import Gallery, JudgedTag, check_page, judge, write_gallery
    from contextcaps.tagging.heat_maps import write_heat_maps
    from contextcaps.tagging.inputs import NotAnImage, count_images, find_images
    from contextcaps.tagging.journal import Journal, model_fingerprint
    from contextcaps.tagging.known import parse_known
    from contextcaps.tagging.loading import load
    from contextcaps.tagging.output import Count, check_output, open_output, tagged_images, write_tags
    from contextcaps.tagging.questions import (
        Question,
        Questions,
        ask_image,
        ask_labels,
        questions_table,
        write_questions,
    )
    from contextcaps.tagging.reasons import describe_move, describe_reasons, print_reasons
    from contextcaps.tagging.relations import Relation, draw_relations, label_relations, strongest_relations
    from contextcaps.tagging.tagger import Tagger
    from contextcaps.tagging.tags import Tag, Tagging

__all__ = [
    "Audit",
    "ClassExplanation",
    "Count",
    "Destination",
    "Explanation",
    "Gallery",
    "Journal",
    "Judge",
    "JudgedTag",
    "LengthExplanation",
    "Move",
    "NotAnImage",
    "Output",
    "Question",
    "Questions",
    "Relation",
    "Suspicion",
    "Tag",
    "Tagger",
    "Tagging",
    "ask_image",
    "ask_labels",
    "audit_labels",
    "audit_table",
    "check_output",
    "check_page",
    "count_images",
    "describe_move",
    "describe_reasons",
    "draw_relations",
    "find_images",
    "judge",
    "label_relations",
    "load",
    "model_fingerprint",
    "open_output",
    "parse_known",
    "print_reasons",
    "questions_table",
    "read_ticked",
    "strongest_relations",
    "tagged_images",
    "write_audit",
    "write_explanation",
    "write_gallery",
    "write_heat_maps",
    "write_questions",
    "write_suspicions",
    "write_tags",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "audit": ["Audit", "Judge", "Suspicion", "audit_labels"],
        "audit_page": ["write_audit"],
        "audit_files": ["audit_table", "read_ticked", "write_suspicions"],
        "explanation": ["ClassExplanation", "Explanation", "LengthExplanation", "Move"],
        "explanation_page": ["write_explanation"],
        "files": ["Destination"],
        "formats": ["Output"],
        "gallery": ["Gallery", "JudgedTag", "check_page", "judge", "write_gallery"],
        "heat_maps": ["write_heat_maps"],
        "inputs": ["NotAnImage", "count_images", "find_images"],
        "journal": ["Journal", "model_fingerprint"],
        "known": ["parse_known"],
        "loading": ["load"],
        "output": ["Count", "check_output", "open_output", "tagged_images", "write_tags"],
        "reasons": ["describe_move", "describe_reasons", "print_reasons"],
        "questions": [
            "Question",
            "Questions",
            "ask_image",
            "ask_labels",
            "questions_table",
            "write_questions",
        ],
        "relations": ["Relation", "draw_relations", "label_relations", "strongest_relations"],
        "tagger": ["Tagger"],
        "tags": ["Tag", "Tagging"],
    },
)
