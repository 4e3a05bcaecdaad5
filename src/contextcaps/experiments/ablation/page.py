"""An ablation as documents: a page with everything in it, the same in Markdown, and all numbers in JSON."""

import dataclasses
from pathlib import Path
from typing import Any

from contextcaps.documents import counted, literal
from contextcaps.documents.page import data_address, render
from contextcaps.evaluation.report.evaluation import plain
from contextcaps.experiments.ablation.figures import figures_of
from contextcaps.experiments.ablation.findings import facts_of, findings
from contextcaps.experiments.ablation.paper import CAVEAT, PAPER_EPOCHS, PAPER_MAP
from contextcaps.experiments.ablation.report import ModelReport, Report
from contextcaps.experiments.ablation.statistics import Spread
from contextcaps.experiments.ablation.tables import report_tables

__all__ = ["ablation_html", "ablation_markdown", "report_document"]


def ablation_html(report: Report, folder: Path) -> str:
    """Return the page; pictures are taken from the folder and put into it."""
    facts = facts_of(report)
    seeds, epochs = counted(len(report.plan.seeds), "seed"), counted(report.plan.base.epochs, "epoch")
    pictures = {
        table: {"words": words, "address": data_address((folder / name).read_bytes())}
        for table, (name, words) in figures_of(report).items()
        if (folder / name).is_file()
    }
    return render(
        "ablation.html.j2",
        title=_title(report),
        lead=f"{counted(len(report.models), 'model')}, {seeds} each, {epochs}; {facts['hardware']}; {facts['date']}.",
        findings=findings(report),
        tables=report_tables(report),
        pictures=pictures,
        facts=facts,
    )


def ablation_markdown(report: Report) -> str:
    """Return the same in Markdown, with the pictures beside it."""
    lines = [f"# {literal(_title(report))}\n", *(f"- {literal(text)}" for text in findings(report)), ""]
    figures = figures_of(report)
    for table in report_tables(report):
        lines.append(table.to_markdown())
        if table.name in figures:
            name, words = figures[table.name]
            lines.append(f"![{words}]({name})\n")
    lines += ["## How it was made\n", *(f"- {name}: {literal(text)}" for name, text in facts_of(report).items()), ""]
    return "\n".join(lines)


def report_document(report: Report) -> dict[str, Any]:
    """Return everything as plain lists, dictionaries and numbers, for JSON; None in place of what is not defined."""
    return plain(
        {
            "facts": facts_of(report),
            "plan": report.plan.to_dict(),
            "findings": findings(report),
            "missing": list(report.missing),
            "test_images": report.images,
            "resamples": report.resamples,
            "seed_deviation": None if report.spread is None else _spread_document(report.spread),
            "prior": report.models[0].runs[0].prior,
            "models": [_model_document(model) for model in report.models],
            "pairs": [dataclasses.asdict(pair) for pair in report.pairs()],
            "paper": {"mAP": PAPER_MAP, "stable_epoch": PAPER_EPOCHS, "caveat": CAVEAT},
        }
    )


def _model_document(model: ModelReport) -> dict[str, Any]:
    return {
        **dataclasses.asdict(model.entry),
        "seeds": list(model.seeds),
        "mAP": dataclasses.asdict(model.mAP),
        "mAP_by_seed": {run.seed: run.metrics["mAP"] for run in model.runs},
        "difference": None if model.difference is None else dataclasses.asdict(model.difference),
        "image_difference": None if model.image_difference is None else dataclasses.asdict(model.image_difference),
        "pairs": model.pairs,
        "verdict": model.verdict,
        "metrics": {name: dataclasses.asdict(each) for name, each in model.metrics.items()},
        "epochs_within_1_percent": list(model.epochs_within),
        "validation_mAP_by_epoch": {run.seed: [record["val_mAP"] for record in run.history] for run in model.runs},
        "learning_rate": model.runs[0].config.lr,
        "loss": model.runs[0].loss,
        "cost": model.cost(),
        "class_gains": [dataclasses.asdict(each) for each in model.gains],
        "choice": dataclasses.asdict(model.choice),
        "runs": [str(run.folder) for run in model.runs],
    }


def _spread_document(spread: Spread) -> dict[str, Any]:
    return {"deviation": spread.deviation, "degrees": spread.degrees, "models": sorted(spread.models)}


def _title(report: Report) -> str:
    return f"Ablation on {report.plan.base.data}"
