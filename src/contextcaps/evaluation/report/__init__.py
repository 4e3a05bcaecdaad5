"""The report of an evaluation: its numbers, as tables for the terminal and as files."""

from contextcaps.evaluation.report.evaluation import ClassFigures, Estimate, Evaluation, Metric, evaluate_predictions
from contextcaps.evaluation.report.files import write_report
from contextcaps.evaluation.report.tables import evaluation_tables

__all__ = [
    "ClassFigures",
    "Estimate",
    "Evaluation",
    "Metric",
    "evaluate_predictions",
    "evaluation_tables",
    "write_report",
]
