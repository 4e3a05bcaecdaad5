"""What an ablation's figures show, in words, and how figures are written."""

import math
from collections.abc import Sequence

from contextcaps.evaluation.report.evaluation import Estimate
from contextcaps.evaluation.report.wording import number_text
from contextcaps.experiments.ablation.report import ModelReport, Report
from contextcaps.experiments.ablation.statistics import rank_correlation

__all__ = ["counted", "facts_of", "findings", "interval_text", "percent_text", "profit", "signed_text"]


_SENTENCES = 4
"""Differences that are told one by one; more are put together by what they show."""


def findings(report: Report) -> list[str]:
    """What the figures show, in sentences, and no more."""
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
    """A sentence on each difference to the baseline."""
    found = []
    for model in models:
        assert model.difference is not None
        assert model.image_difference is not None
        which = f"{model.label} − {report.plan.baseline}: {signed_text(model.difference.value)} points of mAP"
        images = f"over test images {interval_text(model.image_difference, signed=True)}"
        here = " in this one pair of trainings" if model.pairs == 1 else ""
        if model.pairs == 1:
            basis = f"one seed, paired 95 % interval {images}"
        else:
            seeds = interval_text(model.difference, signed=True)
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
    """A sentence on each verdict, where there are too many models for one on each."""
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
                interval = interval_text(deciding, signed=True)
                over = ", one seed, over images" if model.pairs == 1 and several else ""
                listed.append(f"{model.label} ({signed_text(model.difference.value)} {interval}{over})")
        if listed:
            found.append(f"{beginning}: {', '.join(listed)}.")
    return [*found, f"Points of mAP with paired 95 % intervals over {'seeds' if several else 'test images'}."]


def profit(model: ModelReport) -> str:
    """Which classes gain, in a sentence or two."""
    up = sum(each.gain.value > 0 for each in model.gains)
    sure = [each for each in model.gains if model.class_intervals and math.isfinite(each.gain.low)]
    parts = [f"{up} of {len(model.gains)} classes gain"]
    if sure:
        above, below = sum(each.gain.low > 0 for each in sure), sum(each.gain.high < 0 for each in sure)
        parts.append(f"intervals wholly above 0: {above}, below 0: {below}")
    words = f"{parts[0]}{' (' + parts[1] + ')' if len(parts) > 1 else ''}."
    gains = [each.gain.value for each in model.gains]
    links = []
    for what, values in (
        ("frequency", [each.frequency for each in model.gains]),
        ("company", [each.company for each in model.gains]),
    ):
        link = rank_correlation(values, gains)
        if math.isfinite(link):
            links.append(f"{link:+.2f} with {what}".replace("-", "−"))
    return f"{words} Rank correlation of the gain: {', '.join(links)}." if links else words


def facts_of(report: Report) -> dict[str, str]:
    """Where the figures come from."""
    base, run = report.plan.base, report.models[0].runs[0]
    images = run.facts.get("images", {})
    times = [str(each.facts.get("ended", "")) for model in report.models for each in model.runs]
    devices = sorted({str(each.facts.get("device", "not known")) for model in report.models for each in model.runs})
    versions = run.facts.get("versions", {})
    commits = sorted(
        {
            str(each.facts.get("versions", {}).get("commit", "not known"))
            for model in report.models
            for each in model.runs
        }
    )
    tested = "its test part" if report.plan.test_data is None else report.plan.test_data
    rounds = (
        "none"
        if report.plan.tries == 1
        else f"{report.plan.tries} tries of {counted(report.plan.try_epochs, 'epoch')} each"
    )
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
        "hyper-parameters": f"search on the validation part: {rounds}",
        "weights tested": "each run's epoch with the best validation mAP",
        "seeds": ", ".join(map(str, report.plan.seeds)),
        "hardware": ", ".join(devices),
        "date": max(times)[:10] or "not known",
        "command": str(report.document.get("command", "not known")),
        "commit": ", ".join(commits),
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items() if name != "commit"),
    }


def _with(model: ModelReport) -> str:
    return f" with {model.entry.settings}" if model.entry.settings else ""


def counted(number: int, noun: str) -> str:
    """Such as "1 epoch" and "2 epochs"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def percent_text(share: float, digits: int = 1) -> str:
    return number_text(100 * share, digits)


def signed_text(share: float, digits: int = 1) -> str:
    return f"{100 * share:+.{digits}f}".replace("-", "−") if math.isfinite(share) else "–"


def interval_text(estimate: Estimate, signed: bool = False) -> str:
    if not (math.isfinite(estimate.low) and math.isfinite(estimate.high)):
        return "–"
    if not signed:
        return f"[{percent_text(estimate.low)}, {percent_text(estimate.high)}]"
    # So that an end near zero tells on which side of it it lies.
    digits = 2 if min(abs(estimate.low), abs(estimate.high)) < 0.0005 else 1
    return f"[{signed_text(estimate.low, digits)}, {signed_text(estimate.high, digits)}]"
