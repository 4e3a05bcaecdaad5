"""An ablation as a JSON document."""

import dataclasses
from typing import Any

from contextcaps.evaluation.report.evaluation import plain
from contextcaps.experiments.ablation.pairs import pairs_of
from contextcaps.experiments.ablation.paper import CAVEAT, PAPER_EPOCHS, PAPER_MAP
from contextcaps.experiments.ablation.report import ModelReport, Report
from contextcaps.experiments.ablation.wording import facts_of, findings

__all__ = ["report_document"]


def report_document(report: Report) -> dict[str, Any]:
    """Everything as plain lists, dictionaries and numbers, for JSON; None in place of what is not defined."""
    return plain(
        {
            "facts": facts_of(report),
            "plan": report.plan.to_dict(),
            "findings": findings(report),
            "missing": list(report.missing),
            "test_images": report.images,
            "resamples": report.resamples,
            "prior": report.models[0].runs[0].prior,
            "models": [_model(model) for model in report.models],
            "pairs": [dataclasses.asdict(pair) for pair in pairs_of(report)],
            "paper": {"mAP": PAPER_MAP, "stable_epoch": PAPER_EPOCHS, "caveat": CAVEAT},
        }
    )


def _model(model: ModelReport) -> dict[str, Any]:
    return {
        **dataclasses.asdict(model.entry),
        "seeds": list(model.seeds),
        "mAP": dataclasses.asdict(model.mAP),
        "mAP_by_seed": {str(run.seed): run.metrics["mAP"] for run in model.runs},
        "difference": None if model.difference is None else dataclasses.asdict(model.difference),
        "image_difference": None if model.image_difference is None else dataclasses.asdict(model.image_difference),
        "pairs": model.pairs,
        "verdict": model.verdict,
        "metrics": {name: dataclasses.asdict(each) for name, each in model.metrics.items()},
        "epochs_within_1_percent": list(model.epochs_within),
        "validation_mAP_by_epoch": {str(run.seed): [record["val_mAP"] for record in run.history] for run in model.runs},
        "learning_rate": model.runs[0].config.lr,
        "loss": model.runs[0].loss,
        "cost": model.cost(),
        "class_gains": [dataclasses.asdict(each) for each in model.gains],
        "choice": dataclasses.asdict(model.choice),
        "runs": [str(run.folder) for run in model.runs],
    }
