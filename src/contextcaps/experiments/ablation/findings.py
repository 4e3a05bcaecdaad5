"""What an ablation's numbers show, in sentences, and where they come from."""

import math
from collections.abc import Sequence

from contextcaps.documents import counted, signed, signed_interval
from contextcaps.experiments.ablation.report import ModelReport, Report
from contextcaps.experiments.ablation.statistics import rank_correlation

__all__ = ["facts_of", "findings", "profit"]

_SENTENCES = 4
"""Differences that are told one by one; more are put together by what they show."""


def findings(report: Report) -> list[str]:
    """Return what the numbers show, in sentences, and no more."""
    compared = [model for model in report.models if model.difference is not None and model.image_difference is not None]
    found = _each(compared, report) if len(compared) <= _SENTENCES else _grouped(compared, report)
    pairs = max((model.pairs for model in report.models), default=0)
    if pairs == 1:
        found.append("One training of each: the intervals tell what other test images would change, not another seed.")
    elif 1 < pairs < 4:
        found.append(f"{pairs} seeds are few: an interval over so few is wide, and rests on the spread being ordinary.")
    if report.missing:
        found.append(f"Not finished, and not in any figure: {'; '.join(report.missing)}.")
    return found


def _each(models: Sequence[ModelReport], report: Report) -> list[str]:
    """Return a sentence on each difference to the baseline."""
    found = []
    for model in models:
        assert model.difference is not None
        assert model.image_difference is not None
        which = f"{model.label} − {report.plan.baseline}: {signed(model.difference.value)} points of mAP"
        images = f"over test images {signed_interval(model.image_difference)}"
        here = " in this one pair of trainings" if model.pairs == 1 else ""
        if model.pairs == 1:
            basis = f"one seed, paired 95 % interval {images}"
        else:
            seeds = signed_interval(model.difference)
            basis = f"{model.pairs} seeds, paired 95 % interval over seeds {seeds}, {images}"
        verdict = {
            "better": f"{model.label} is ahead{here}.",
            "worse": f"{report.plan.baseline} is ahead{here}.",
            "not shown": "No difference is shown.",
            "undefined": "The difference is undefined.",
        }[model.verdict]
        found.append(f"{verdict} {which} ({basis}).")
    return found


def _grouped(models: Sequence[ModelReport], report: Report) -> list[str]:
    """Return a sentence on each verdict, where there are too many models for one on each."""
    base = report.plan.baseline
    words = {
        "better": f"Ahead of {base}",
        "worse": f"Behind {base}",
        "not shown": f"No difference to {base} is shown for",
        "undefined": "The difference is undefined for",
    }
    several = max(model.pairs for model in models) > 1
    found = []
    for verdict, beginning in words.items():
        listed = []
        for model in models:
            if model.verdict == verdict:
                assert model.difference is not None
                deciding = model.image_difference if model.pairs == 1 else model.difference
                assert deciding is not None
                interval = signed_interval(deciding)
                over = ", one seed, over images" if model.pairs == 1 and several else ""
                listed.append(f"{model.label} ({signed(model.difference.value)} {interval}{over})")
        if listed:
            found.append(f"{beginning}: {', '.join(listed)}.")
    return [*found, f"Points of mAP with paired 95 % intervals over {'seeds' if several else 'test images'}."]


def profit(model: ModelReport) -> str:
    """Return which classes gain, in a sentence or two."""
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
        "training": f"{counted(base.epochs, 'epoch')}, {base.image_size}×{base.image_size} px, backbone {backbone}, "
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
