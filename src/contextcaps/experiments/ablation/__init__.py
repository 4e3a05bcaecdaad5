"""Ablations: models and seeds under the same conditions, and what their results show."""

from typing import TYPE_CHECKING

from contextcaps.lazy_names import lazy_names

if TYPE_CHECKING:
    from contextcaps.experiments.ablation.ablation import Ablation, ablate, show_ablation, write_ablation
    from contextcaps.experiments.ablation.config import AblateConfig, ablate_command
    from contextcaps.experiments.ablation.grid import Entry, Plan, parse_models
    from contextcaps.experiments.ablation.report import ModelReport, Report, make_report

__all__ = [
    "AblateConfig",
    "Ablation",
    "Entry",
    "ModelReport",
    "Plan",
    "Report",
    "ablate",
    "ablate_command",
    "make_report",
    "parse_models",
    "show_ablation",
    "write_ablation",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "ablation": ["Ablation", "ablate", "show_ablation", "write_ablation"],
        "config": ["AblateConfig", "ablate_command"],
        "grid": ["Entry", "Plan", "parse_models"],
        "report": ["ModelReport", "Report", "make_report"],
    },
)
