"""Sentences about an ablation's numbers: which differences they show, and where they come from."""

import math

from contextcaps.documents import counted, signed, signed_interval
from contextcaps.experiments.ablation.report import ModelReport, Report
from contextcaps.experiments.ablation.statistics import rank_correlation

__all__ = ["facts_of", "findings", "profit"]


def findings(report: Report) -> list[str]:
    """Return what the numbers show, in sentences: the models by verdict, then the limits of the comparison."""
    base = report.plan.baseline
    compared = [model for model in report.models if model.deciding is not None]
    pairs = max((model.pairs for model in report.models), default=0)
    found = []
    for verdict, beginning in (
        ("better", f"Better than {base}"),
        ("worse", f"Worse than {base}"),
        ("not shown", f"No difference to {base} is shown for"),
        ("undefined", f"The difference to {base} is undefined for"),
    ):
        listed = [_difference(model, pairs > 1) for model in compared if model.verdict == verdict]
        if listed:
            found.append(f"{beginning}: {', '.join(listed)}.")
    if compared:
        found.append(f"Points of mAP with 95 % intervals over {'seeds' if pairs > 1 else 'test images'}.")
    if pairs == 1:
        found.append("One training of each: the intervals tell what other test images would change, not another seed.")
    elif 1 < pairs < 4:
        found.append(f"{pairs} seeds are few: an interval over so few is wide, and rests on the spread being ordinary.")
    if report.missing:
        found.append(f"Not finished, and not in any figure: {'; '.join(report.missing)}.")
    return found


def _difference(model: ModelReport, several: bool) -> str:
    """Return a model's difference to the baseline; where other models have several seeds, one seed is marked."""
    assert model.deciding is not None
    over = ", one seed, over images" if several and model.pairs == 1 else ""
    return f"{model.label} ({signed(model.deciding.value)} {signed_interval(model.deciding)}{over})"


def profit(model: ModelReport) -> str:
    """Return how many classes gain, and how the gain goes with frequency and company, in a sentence or two."""
    gains = [each.gain.value for each in model.gains]
    words = f"{sum(gain > 0 for gain in gains)} of {len(gains)} classes gain"
    sure = [each.gain for each in model.gains if model.class_intervals and math.isfinite(each.gain.low)]
    if sure:
        above, below = sum(each.low > 0 for each in sure), sum(each.high < 0 for each in sure)
        words += f" (intervals wholly above 0: {above}, below 0: {below})"
    links = {
        "frequency": rank_correlation([each.frequency for each in model.gains], gains),
        "company": rank_correlation([each.company for each in model.gains], gains),
    }
    known = [f"{signed(link, 2, factor=1)} with {what}" for what, link in links.items() if math.isfinite(link)]
    return f"{words}. Rank correlation of the gain: {', '.join(known)}." if known else f"{words}."


def facts_of(report: Report) -> dict[str, str]:
    """Return where the numbers come from: data, training, models, seeds, hardware, versions."""
    base, runs = report.plan.base, [run for model in report.models for run in model.runs]
    run = runs[0]
    images = run.facts.get("images", {})
    versions = run.facts.get("versions", {})
    devices = sorted({str(each.facts.get("device", "not known")) for each in runs})
    commits = sorted({str(each.facts.get("versions", {}).get("commit", "not known")) for each in runs})
    tested = "its test part" if report.plan.test_data is None else report.plan.test_data
    searched = f"{report.plan.tries} tries of {counted(report.plan.try_epochs, 'epoch')} each"
    loss = "margin loss for lengths and cross-entropy for sigmoids" if base.loss == "auto" else f"{base.loss} loss"
    tried = {(model.label, each.settings["loss"]) for model in report.models for each in model.choice.tries}
    chosen = "learning rate and loss chosen" if len(tried) > len(report.models) else f"learning rate chosen, {loss}"
    rate = f"learning rate {base.lr:g}, {loss}" if report.plan.tries == 1 else chosen
    backbone = f"{base.backbone}, frozen" if base.freeze else base.backbone
    if base.freeze and base.augmentation:
        backbone += f", {base.views} views of each image"
    options = "".join(f", {name}={value}" for name, value in base.options.items())
    return {
        "data": f"{base.data}; {images.get('train', 0):,} training, {images.get('val', 0):,} validation and "
        f"{report.images:,} test images ({tested}), {report.classes} classes; the same division for all",
        "training": f"{counted(base.epochs, 'epoch')}, {base.side}×{base.side} px, backbone {backbone}, "
        f"batches of {run.batch}, {rate}, schedule {base.schedule}, "
        f"{run.facts.get('precision', '')}{options}; augmentation {'on' if base.augmentation else 'off'}; the same for "
        "all, but where a model has settings of its own",
        "models": "; ".join(f"{each.label}: {each.entry.preset}{_with(each)}" for each in report.models),
        "hyper-parameters": f"search on the validation part: {searched if report.plan.tries > 1 else 'none'}",
        "weights tested": "each run's epoch with the best validation mAP",
        "seeds": ", ".join(map(str, report.plan.seeds)),
        "hardware": ", ".join(devices),
        "date": max(str(each.facts.get("ended", "")) for each in runs)[:10] or "not known",
        "command": str(report.document.get("command", "not known")),
        "commit": ", ".join(commits),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items() if name != "commit"),
    }


def _with(model: ModelReport) -> str:
    return f" with {model.entry.settings}" if model.entry.settings else ""
