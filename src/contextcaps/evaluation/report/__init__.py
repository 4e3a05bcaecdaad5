"""What an evaluation says, as files and for the terminal."""

from contextcaps.evaluation.report.evaluation import ClassFigures, Estimate, Evaluation, Metric, evaluate_predictions
from contextcaps.evaluation.report.tables import evaluation_table
from contextcaps.evaluation.report.writing import write_report

__all__ = [
    "evaluate_predictions",
    "Evaluation",
    "Estimate",
    "Metric",
    "ClassFigures",
    "evaluation_table",
    "write_report",
]
