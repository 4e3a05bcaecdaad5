"""The tables of an ablation, the same in the terminal, in Markdown and on the page."""

import math
import statistics
from typing import Any, Literal

from contextcaps.documents import (
    Cell,
    Column,
    Row,
    Table,
    count,
    counted,
    duration,
    interval,
    number,
    percent,
    signed,
    signed_interval,
)
from contextcaps.evaluation.report.evaluation import Estimate
from contextcaps.evaluation.report.tables import metric_label, metric_value
from contextcaps.experiments.ablation.findings import profit
from contextcaps.experiments.ablation.paper import CAVEAT, PAPER_EPOCHS, PAPER_MAP, PAPER_ROWS, paper_row
from contextcaps.experiments.ablation.report import ModelReport, Report

__all__ = ["class_table_name", "report_tables"]

_METRICS = ("micro_AP", "sample_AP", "CF1@0.5", "OF1@0.5", "CF1@tuned", "OF1@tuned", "ECE")
_SHOWN_CLASSES = 5
_TONES: dict[str, Literal["good", "bad"]] = {"better": "good", "worse": "bad"}


def report_tables(report: Report) -> list[Table]:
    """Return all tables, in the order to read them."""
    found = [_main(report)]
    if len(report.models) > 2:
        found.append(_pairs(report))
    found += [_paper(report), _metrics(report), _convergence(report), _cost(report)]
    found += [_classes(report, model) for model in report.models if model.gains]
    if report.plan.tries > 1:
        found.append(_tries(report))
    return found


def class_table_name(model: ModelReport) -> str:
    """Return the name of the table of a model's classes."""
    return f"classes-{model.label}"


def _model_column(*others: Column) -> tuple[Column, ...]:
    return (Column("model", align="left"), *others)


def _value(estimate: Estimate) -> str:
    return percent(estimate.value)


def _difference(estimate: Estimate) -> str:
    return signed(estimate.value)


def _main(report: Report) -> Table:
    columns = _model_column(
        Column("trained with"),
        Column("seeds"),
        Column("mAP", _value),
        Column("95 % interval", interval),
        Column(f"− {report.plan.baseline}", _difference),
        Column("over seeds", signed_interval),
        Column("over images", signed_interval),
        Column("difference"),
    )
    prior = report.models[0].runs[0].prior["mAP"]
    rows: list[Any] = [Row(("constant prior", None, None, percent(prior), *[None] * 5))]
    for model in report.models:
        trained = f"{model.runs[0].loss}, {model.runs[0].config.lr:g}"
        differences = (model.difference, model.difference, model.image_difference)
        verdict = Cell(model.verdict, _TONES.get(model.verdict))
        rows.append((model.label, trained, len(model.runs), model.mAP, model.mAP, *differences, verdict))
    counts = {len(model.runs) for model in report.models}
    single = "With a single seed, intervals are those over test images; "
    spread = single if counts == {1} else "Intervals of the mean are over seeds (Student's t); "
    if 1 in counts and len(counts) > 1:
        spread += f"{single[0].lower()}{single[1:]}"
    note = (
        f"Macro mAP on {report.images:,} test images, in percent. {spread}differences over seeds "
        f"take {_deviation(report)}, those over images are paired: the same resampled test images "
        f"({report.resamples} resamples, all seeds in each). The verdict goes by the "
        "interval over seeds, with one seed by that over images, which then tells of these trainings alone; intervals "
        "are not adjusted for the number of models."
    )
    return Table("Test mAP", columns, rows, (note,), "table")


def _deviation(report: Report) -> str:
    """Return what the intervals of differences over seeds come from, in words."""
    if report.spread is None:
        return "two seeds at least"
    deviation = number(100 * report.spread.deviation, 2)
    words = f"the deviation from seed to seed, pooled over models ({deviation} points)"
    own = [model.label for model in report.models if len(model.runs) > 1 and model.label not in report.spread.models]
    return f"{words}, but for {', '.join(own)}, which vary much more (Welch)" if own else words


def _pairs(report: Report) -> Table:
    found = {(pair.label, pair.other): pair for pair in report.pairs()}
    labels = [model.label for model in report.models]
    rows = []
    for label in labels:
        pairs = [found.get((label, other)) for other in labels]
        rows.append((label, *("" if pair is None else pair for pair in pairs)))
    columns = _model_column(
        *(Column(label, lambda pair: f"{_difference(pair.difference)}{' *' * pair.is_shown}") for label in labels)
    )
    seeds = max((pair.seeds for pair in found.values()), default=1)
    stars = (
        "*: the 95 % interval over seeds leaves out 0. Where models are equal, one pair in twenty has a star by "
        "chance. The intervals are in ablation.json. "
        if seeds > 1
        else "One seed gives no interval, so none of these is shown to be there. "
    )
    note = (
        f"Row − column in points of test mAP, mean over common seeds. {stars}contextcaps ablate --report-only "
        "--baseline MODEL compares all with another model in full."
    )
    return Table("Every pair", columns, rows, (note,), "pairs")


def _paper(report: Report) -> Table:
    columns = _model_column(
        Column("the paper's row", align="left"),
        Column("paper: mAP", lambda value: percent(value, 2)),
        Column("paper − CapsNet", lambda value: signed(value, 2)),
        Column("ours: mAP", lambda estimate: percent(estimate.value, 2)),
        Column(f"ours − {report.plan.baseline}", _difference),
        Column("ours: CP at 0.5", _value),
        Column("ours: OP at 0.5", _value),
    )
    rows = []
    for model in report.models:
        row = paper_row(model.entry, report.plan.base.options)
        if row in PAPER_MAP:
            gain = PAPER_MAP[row] - PAPER_MAP["capsnet"]
            paper = (PAPER_ROWS[row], PAPER_MAP[row], gain or None)
            precisions = (model.metrics.get("CP@0.5"), model.metrics.get("OP@0.5"))
            rows.append((model.label, *paper, model.mAP, model.difference, *precisions))
    empty = "None of the models is in the paper's table."
    return Table("Beside the paper", columns, rows, (f"mAP in percent. {CAVEAT}",), "paper", empty=empty)


def _metrics(report: Report) -> Table:
    names = [name for name in _METRICS if name in report.models[0].metrics]
    columns = _model_column(*(Column(_metric_heading(name), _plus_minus) for name in names))
    prior = report.models[0].runs[0].prior
    rows: list[Any] = [Row(("constant prior", *(metric_value(name, prior[name]) for name in names)))]
    rows += [(model.label, *((name, model.metrics[name]) for name in names)) for model in report.models]
    single = all(len(model.runs) == 1 for model in report.models)
    spread = "One seed" if single else "Means over seeds ± half of the 95 % interval over seeds"
    note = (
        f"{spread}, in percent. CF1 and OF1 at 0.5 and at thresholds tuned on the validation part. The constant prior "
        "never looks at the image; micro and sample AP flatter it."
    )
    return Table("Other metrics on the test part", columns, rows, (note,), "metrics")


def _metric_heading(name: str) -> str:
    threshold = name.partition("@")[2]
    return f"{metric_label(name)} {'at ' + threshold if threshold == '0.5' else threshold}".strip()


def _plus_minus(metric: tuple[str, Estimate]) -> str:
    name, estimate = metric
    half = (estimate.high - estimate.low) / 2
    value = metric_value(name, estimate.value)
    return f"{value} ± {metric_value(name, half)}" if math.isfinite(half) else value


def _convergence(report: Report) -> Table:
    columns = _model_column(
        Column("first epoch within 1 %", lambda epochs: number(statistics.fmean(epochs), 1)),
        Column("range over seeds", lambda epochs: f"{min(epochs)} – {max(epochs)}"),
        Column("final mAP", percent),
        Column("best mAP", percent),
        Column("paper: stable", lambda epoch: f"around {epoch}"),
    )
    rows = []
    for model in report.models:
        epochs = model.epochs_within or None
        final = statistics.fmean(run.history[-1]["val_mAP"] for run in model.runs)
        best = statistics.fmean(max(record["val_mAP"] for record in run.history) for run in model.runs)
        paper = PAPER_EPOCHS.get(paper_row(model.entry, report.plan.base.options) or "")
        rows.append((model.label, epochs, epochs, final, best, paper))
    note = (
        f"Validation mAP, in percent, over {counted(report.plan.base.epochs, 'epoch')}: the first epoch of at least "
        "99 % of the run's own final value, mean and range over seeds. With a learning rate that falls to the end, "
        "this tells of the schedule, too. The paper sees CapsNet stabilise around epoch 15 and CapsNet with RW around "
        "epoch 9, on other data."
    )
    return Table("Convergence", columns, rows, (note,), "convergence")


def _cost(report: Report) -> Table:
    columns = _model_column(
        Column("weights", lambda weights: f"{number(weights / 1e6, 2)} M"),
        Column("step, ms", lambda value: number(value, 1 if value < 100 else 0)),
        Column("images/s", number),
        Column("peak memory", lambda size: f"{number(size / 2**30, 2)} GiB"),
        Column("training", duration),
    )
    costs = {model.label: model.cost() for model in report.models}
    rows = []
    for label, cost in costs.items():
        memory = cost["peak_memory_bytes"]
        known = memory if math.isfinite(memory) else None
        speed = (cost["step_milliseconds"], cost["images_per_second"])
        rows.append((label, cost["parameters"], *speed, known, cost["seconds"]))
    runs = [run for model in report.models for run in model.runs]
    where = {(run.facts.get("memory") or {}).get("where") for run in runs}
    kind = "GPU memory that torch took" if where == {"GPU"} else "resident memory of the process"
    beside = max(run.beside for run in runs)
    shared = f" Up to {beside + 1} runs shared the device, so times are longer than alone." if beside else ""
    note = (
        f"A step has {runs[0].batch} images, forward and backward, without validation; training is one run with its "
        f"validations. Memory: the highest {kind}.{shared}"
    )
    return Table("Cost", columns, rows, (note,), "cost")


def _classes(report: Report, model: ModelReport) -> Table:
    columns = (
        Column("class", align="left"),
        Column("gain of AP", _difference),
        Column("95 % interval", signed_interval),
        Column("% of training", percent),
        Column("test images", count),
        Column("company", lambda value: number(value, 1)),
    )
    rows = [
        (
            each.name,
            each.gain,
            each.gain if model.class_intervals else None,
            each.frequency,
            each.positives,
            each.company,
        )
        for each in model.gains
    ]
    best, worst = rows[:_SHOWN_CLASSES], rows[_SHOWN_CLASSES:][-_SHOWN_CLASSES:]
    shown = f"The {len(best)} highest and the {len(worst)} lowest" if worst else "All"
    note = (
        f"{shown} of {counted(len(rows), 'difference')} of average precision, {model.label} − {report.plan.baseline} "
        f"in points, mean over {counted(model.pairs, 'seed')}. {profit(model)} Company: other "
        "classes in a test image that shows the class, on average. The largest of many differences are large by "
        "chance, too."
    )
    more = rows if len(rows) > 2 * _SHOWN_CLASSES else ()
    return Table(f"Classes: {model.label}", columns, [*best, *worst], (note,), class_table_name(model), more)


def _tries(report: Report) -> Table:
    columns = _model_column(
        Column("try"),
        Column("learning rate", lambda rate: f"{rate:g}"),
        Column("loss"),
        Column("validation mAP", lambda value: percent(value, 2)),
        Column(""),
    )
    rows = []
    for model in report.models:
        for each in model.choice.tries:
            value = each.mAP if math.isfinite(each.mAP) else "failed"
            chosen = "chosen" if each.number == model.choice.number else ""
            rows.append((model.label, each.number, each.settings["lr"], each.settings["loss"], value, chosen))
    plan = report.plan
    note = (
        f"{plan.tries} tries for each model, of {counted(plan.try_epochs, 'epoch')} each with seed "
        f"{plan.seeds[0]}; the highest validation mAP (in percent) is taken for all seeds. The test part has no say."
        + (" A try of all epochs that was chosen is that seed's run." if plan.try_epochs == plan.base.epochs else "")
    )
    return Table("Hyper-parameters", columns, rows, (note,), "tries")
