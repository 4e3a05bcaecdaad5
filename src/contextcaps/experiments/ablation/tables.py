"""The tables of an ablation, the same in the terminal, in Markdown and on the page."""

import dataclasses
import math
import statistics

from contextcaps.documents import duration
from contextcaps.evaluation.report.evaluation import Estimate
from contextcaps.evaluation.report.wording import metric_label, number_text, scale_of
from contextcaps.experiments.ablation.pairs import pairs_of
from contextcaps.experiments.ablation.paper import CAVEAT, PAPER_EPOCHS, PAPER_MAP, PAPER_ROWS, paper_row
from contextcaps.experiments.ablation.report import ModelReport, Report
from contextcaps.experiments.ablation.wording import counted, interval_text, percent_text, profit, signed_text

__all__ = ["Grid", "grids"]

_METRICS = ("micro_AP", "sample_AP", "CF1@0.5", "OF1@0.5", "CF1@tuned", "OF1@tuned", "ECE")
_SHOWN_CLASSES = 5


@dataclasses.dataclass(frozen=True)
class Grid:
    """A table: the first column is text, the others are figures."""

    name: str
    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str
    more: tuple[tuple[str, ...], ...] = ()
    """All rows, where `rows` are some of them; shown where there is room."""


def grids(report: Report) -> list[Grid]:
    """All tables, in the order to read them."""
    found = [_main(report)]
    if len(report.models) > 2:
        found.append(_pairs(report))
    found += [_paper(report), _metrics(report), _convergence(report), _cost(report)]
    found += [_classes(report, model) for model in report.models if model.gains]
    if report.plan.tries > 1:
        found.append(_tries(report))
    return found


def _main(report: Report) -> Grid:
    base = report.plan.baseline
    counts = {len(model.runs) for model in report.models}
    prior = report.models[0].runs[0].prior["mAP"]
    rows: list[tuple[str, ...]] = [("constant prior", "–", "–", percent_text(prior), "–", "–", "–", "–", "–")]
    rows += [_main_row(model) for model in report.models]
    single = "With a single seed, intervals are those over test images; "
    spread = single if counts == {1} else "Intervals of the mean are over seeds (Student's t); "
    if 1 in counts and len(counts) > 1:
        spread += f"{single[0].lower()}{single[1:]}"
    note = (
        f"Macro mAP on {report.images:,} test images, in percent. {spread}differences are paired: the same seed, or "
        f"the same resampled test images ({report.resamples} resamples, all seeds in each). The verdict goes by the "
        "interval over seeds, with one seed by that over images, which then tells of these trainings alone; intervals "
        "are not adjusted for the number of models."
    )
    difference = (f"− {base}", "over seeds", "over images", "difference")
    headings = ("model", "trained with", "seeds", "mAP", "95 % interval", *difference)
    return Grid("table", "Test mAP", headings, tuple(rows), note)


def _main_row(model: ModelReport) -> tuple[str, ...]:
    difference, images = model.difference, model.image_difference
    return (
        model.label,
        f"{model.runs[0].loss}, {model.runs[0].config.lr:g}",
        str(len(model.runs)),
        percent_text(model.mAP.value),
        interval_text(model.mAP),
        "–" if difference is None else signed_text(difference.value),
        "–" if difference is None else interval_text(difference, signed=True),
        "–" if images is None else interval_text(images, signed=True),
        model.verdict,
    )


def _pairs(report: Report) -> Grid:
    found = {(pair.label, pair.other): pair for pair in pairs_of(report)}
    labels = [model.label for model in report.models]
    rows = []
    for label in labels:
        cells = []
        for other in labels:
            pair = found.get((label, other))
            star = " *" if pair is not None and pair.is_shown else ""
            cells.append("" if pair is None else f"{signed_text(pair.difference.value)}{star}")
        rows.append((label, *cells))
    seeds = max((pair.seeds for pair in found.values()), default=1)
    stars = (
        "*: the paired 95 % interval over seeds leaves out 0. Where models are equal, one pair in twenty has a star by "
        "chance. The intervals are in ablation.json. "
        if seeds > 1
        else "One seed gives no interval, so none of these is shown to be there. "
    )
    note = (
        f"Row − column in points of test mAP, mean over common seeds. {stars}contextcaps ablate --report-only "
        "--baseline MODEL compares all with another model in full."
    )
    return Grid("pairs", "Every pair", ("model", *labels), tuple(rows), note)


def _paper(report: Report) -> Grid:
    base = report.baseline
    rows = []
    for model in report.models:
        row = paper_row(model.entry, report.plan.base.options)
        if row not in PAPER_MAP:
            continue
        ours = "–" if base is None or model.difference is None else signed_text(model.difference.value)
        gain = PAPER_MAP[row] - PAPER_MAP["capsnet"]
        rows.append(
            (
                model.label,
                PAPER_ROWS[row],
                f"{PAPER_MAP[row]:.2f}",
                f"+{gain:.2f}" if gain else "–",
                percent_text(model.mAP.value, 2),
                ours,
            )
        )
    own = f"ours − {report.plan.baseline}"
    headings = ("model", "the paper's row", "paper: mAP", "paper − CapsNet", "ours: mAP", own)
    return Grid("paper", "Beside the paper", headings, tuple(rows), CAVEAT)


def _metrics(report: Report) -> Grid:
    names = [name for name in _METRICS if name in report.models[0].metrics]
    prior = report.models[0].runs[0].prior
    rows = [("constant prior", *(number_text(scale_of(name)[0] * prior[name], scale_of(name)[1]) for name in names))]
    rows += [(model.label, *(_plus_minus(name, model.metrics[name]) for name in names)) for model in report.models]
    headings = ("model", *(_metric_heading(name) for name in names))
    single = all(len(model.runs) == 1 for model in report.models)
    spread = "One seed" if single else "Means over seeds ± half of the 95 % interval over seeds"
    note = (
        f"{spread}, in percent. CF1 and OF1 at 0.5 and at thresholds tuned on the validation part. The constant prior "
        "never looks at the image; micro and sample AP flatter it."
    )
    return Grid("metrics", "Other metrics on the test part", headings, tuple(rows), note)


def _convergence(report: Report) -> Grid:
    rows = []
    for model in report.models:
        epochs = model.epochs_within
        finals = [run.history[-1]["val_mAP"] for run in model.runs]
        best = [max(record["val_mAP"] for record in run.history) for run in model.runs]
        paper = PAPER_EPOCHS.get(paper_row(model.entry, report.plan.base.options) or "")
        rows.append(
            (
                model.label,
                f"{statistics.fmean(epochs):.1f}" if epochs else "–",
                f"{min(epochs)} – {max(epochs)}" if epochs else "–",
                percent_text(statistics.fmean(finals)),
                percent_text(statistics.fmean(best)),
                "–" if paper is None else f"around {paper}",
            )
        )
    headings = ("model", "first epoch within 1 %", "range over seeds", "final mAP", "best mAP", "paper: stable")
    note = (
        f"Validation mAP over {counted(report.plan.base.epochs, 'epoch')}: the first epoch of at least 99 % of the "
        "run's own final value, mean and range over seeds. With a learning rate that falls to the end, this tells of "
        "the schedule, too. The paper sees CapsNet stabilise around epoch 15 and CapsNet with RW around epoch 9, on "
        "other data."
    )
    return Grid("convergence", "Convergence", headings, tuple(rows), note)


def _cost(report: Report) -> Grid:
    rows = []
    for model in report.models:
        cost = model.cost()
        memory = cost["peak_memory_bytes"]
        rows.append(
            (
                model.label,
                f"{cost['parameters'] / 1e6:.2f} M",
                number_text(cost["step_milliseconds"], 1 if cost["step_milliseconds"] < 100 else 0),
                f"{cost['images_per_second']:,.0f}" if math.isfinite(cost["images_per_second"]) else "–",
                f"{memory / 2**30:.2f} GiB" if math.isfinite(memory) else "–",
                duration(cost["seconds"]),
            )
        )
    where = {(run.facts.get("memory") or {}).get("where") for model in report.models for run in model.runs}
    kind = "GPU memory that torch took" if where == {"GPU"} else "resident memory of the process"
    beside = max(run.beside for model in report.models for run in model.runs)
    shared = f" Up to {beside + 1} runs shared the device, so times are longer than alone." if beside else ""
    headings = ("model", "weights", "step, ms", "images/s", "peak memory", "training")
    note = (
        f"A step has {report.models[0].runs[0].batch} images, forward and backward, without validation; training is "
        f"one run with its validations. Memory: the highest {kind}.{shared}"
    )
    return Grid("cost", "Cost", headings, tuple(rows), note)


def _classes(report: Report, model: ModelReport) -> Grid:
    rows = tuple(
        (
            each.name,
            signed_text(each.gain.value),
            interval_text(each.gain, signed=True) if model.class_intervals else "–",
            f"{100 * each.frequency:.1f}",
            f"{each.positives:,}",
            f"{each.company:.1f}",
        )
        for each in model.gains
    )
    best, worst = rows[:_SHOWN_CLASSES], rows[_SHOWN_CLASSES:][-_SHOWN_CLASSES:]
    headings = ("class", "gain of AP", "95 % interval", "% of training", "test images", "company")
    shown = f"The {len(best)} highest and the {len(worst)} lowest" if worst else "All"
    note = (
        f"{shown} of {counted(len(rows), 'difference')} of average precision, {model.label} − {report.plan.baseline} "
        f"in points, mean over {counted(model.pairs, 'seed')}. {profit(model)} Company: other "
        "classes in a test image that shows the class, on average. The largest of many differences are large by "
        "chance, too."
    )
    more = rows if len(rows) > 2 * _SHOWN_CLASSES else ()
    return Grid(f"classes-{model.label}", f"Classes: {model.label}", headings, (*best, *worst), note, more)


def _tries(report: Report) -> Grid:
    rows = []
    for model in report.models:
        for each in model.choice.tries:
            chosen = "chosen" if each.number == model.choice.number else ""
            rows.append(
                (
                    model.label,
                    str(each.number),
                    f"{each.settings['lr']:g}",
                    each.settings["loss"],
                    percent_text(each.mAP, 2) if math.isfinite(each.mAP) else "failed",
                    chosen,
                )
            )
    headings = ("model", "try", "learning rate", "loss", "validation mAP", "")
    plan = report.plan
    note = (
        f"{plan.tries} tries for each model, of {counted(plan.try_epochs, 'epoch')} each with seed "
        f"{plan.seeds[0]}; the highest validation mAP is taken for all seeds. The test part has no say."
        + (" A try of all epochs that was chosen is that seed's run." if plan.try_epochs == plan.base.epochs else "")
    )
    return Grid("tries", "Hyper-parameters", headings, tuple(rows), note)


def _metric_heading(name: str) -> str:
    stem, _, threshold = name.partition("@")
    return f"{metric_label(stem)} {'at ' + threshold if threshold == '0.5' else threshold}".strip()


def _plus_minus(name: str, estimate: Estimate) -> str:
    factor, digits = scale_of(name)
    value = number_text(factor * estimate.value, digits)
    half = factor * (estimate.high - estimate.low) / 2
    return f"{value} ± {half:.{digits}f}" if math.isfinite(half) else value
