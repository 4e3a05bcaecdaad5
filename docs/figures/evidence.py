"""The figures of docs/results/paper.md and ade20k.md, drawn from what ablations found (docs/evidence/*.json).

`python docs/figures/evidence.py` draws them all beside this file; with FOLDER and NAME it takes what they need from the
ablation.json in an ablation's folder, without the paths of the machine that ran it, and draws nothing.
"""

import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

HERE = Path(__file__).parent
EVIDENCE = HERE.parent / "evidence"
DATA = {"coco": "COCO, 80 classes", "stuff": "COCO-Stuff, 171 classes", "corel": "Corel5k, 374 words"}
KINDS = {"lite0": "frozen ImageNet backbone", "64": "from scratch, 64 px"}
# Okabe and Ito's colours, which people with any colour vision can tell apart.
COLOURS = {
    "capsnet": "#000000",
    "capsnet-rw": "#D55E00",
    "capsnet-rw-crf": "#009E73",
    "capsnet-rw-crf-corr": "#CC79A7",
    "contextcaps-rw-crf-corr": "#0072B2",
}
ORDER = ("contextcaps", "contextcaps-rw-crf-corr", "capsnet-rw", "rw-gate", "capsnet-rw-crf", "capsnet-rw-crf-corr")
ORDER += ("capsnet-rw-literal", "capsnet-rw-crf-literal", "capsnet-rw-crf-literal-corr-joined", "capsnet-uniform")
ORDER += ("capsnet-em", "capsnet-asl", "gap", "gap-asl", "gmp", "gmp-global", "ml-decoder", "ml-decoder-asl")
ORDER += ("ml-decoder-global",)
ORDER += ("ml-gcn", "query2label", "query2label-asl")
CAPSULES, BASELINE = "#0072B2", "#D55E00"
BASELINES = ("gap", "gmp", "csra", "ml-decoder", "ml-gcn", "query2label")
PRIOR_METRICS = ("micro_AP", "sample_AP", *(f"{name}@0.5" for name in ("CP", "CR", "CF1", "OP", "OR", "OF1")))
STEM_STYLES = {
    "capsnet": ("#000000", "-"),
    "capsnet-rw-crf-corr": ("#CC79A7", "-"),
    "contextcaps-rw-crf-corr": ("#CC79A7", "--"),
    "contextcaps": ("#0072B2", "-"),
    "gap": (BASELINE, "-"),
}
"""Dashed: the same capsules with the field."""
NAMES = {
    "ml-decoder-global": "ml-decoder + global",
    "gmp-global": "gmp + global",
    "rw-gate": "capsnet-rw as gate",
    "capsnet-asl": "capsnet, ASL",
    "ml-decoder-asl": "ml-decoder, ASL",
    "query2label-asl": "query2label, ASL",
    "gap-asl": "gap, ASL",
    "capsnet-rw-crf-literal-corr-joined": "the same with CORR joined",
}


def collect(folder: Path, name: str) -> None:
    """Keep of an ablation what the figures and tables need."""
    found = json.loads((folder / "ablation.json").read_text(encoding="utf-8"))
    kept = {
        "facts": {key: _without_paths(value) for key, value in found["facts"].items() if key != "commit"},
        "test_images": found["test_images"],
        "resamples": found["resamples"],
        "seed_deviation": found["seed_deviation"],
        "prior_mAP": found["prior"]["mAP"],
        "prior": {name: value for name, value in found["prior"].items() if name in PRIOR_METRICS},
        "models": [_model(model) for model in found["models"]],
    }
    EVIDENCE.mkdir(exist_ok=True)
    text = json.dumps(_rounded(kept), ensure_ascii=False, indent=1)
    text = re.sub(r"\[\s+([^][{}]*?)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", text)  # a list in a line
    (EVIDENCE / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def _model(model: dict[str, Any]) -> dict[str, Any]:
    keys = (
        "label",
        "preset",
        "options",
        "learning_rate",
        "loss",
        "mAP",
        "mAP_by_seed",
        "difference",
        "image_difference",
    )
    kept = {key: model[key] for key in (*keys, "epochs_within_1_percent", "validation_mAP_by_epoch")}
    kept["metrics"] = {name: each["value"] for name, each in model["metrics"].items()}
    kept["weights"] = model["cost"]["parameters"]
    kept["tries"] = [{**each["settings"], "validation_mAP": each["mAP"]} for each in model["choice"]["tries"]]
    if model["label"] == "contextcaps":
        kept["class_gains"] = [
            [each["name"], each["gain"]["value"], each["gain"]["low"], each["gain"]["high"], each["frequency"]]
            for each in model["class_gains"]
        ]
    return kept


def _without_paths(text: str) -> str:
    text = re.sub(r" --resamples \d+| --quiet", "", text)  # of the runs; the intervals are of `resamples`
    return re.sub(r"(shards:|--out )\S*?([^\s/']*)(?=['\s;)]|$)", r"\1PATH/\2", text)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, dict):
        return {key: _rounded(each) for key, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


def draw_differences() -> None:
    """Every model's difference to `capsnet`, on each data set, with and without a pretrained backbone."""
    figure = _figure(13.2, 9.8)
    rows = figure.subplots(2, 3, gridspec_kw={"height_ratios": [1, 1.15]})
    for line, (kind, words) in enumerate(KINDS.items()):
        for column, (data, title) in enumerate(DATA.items()):
            axes = rows[line][column]
            found = _read(f"{data}-{kind}")
            models = [each for each in found["models"] if each["difference"] is not None]
            left_out = [each["label"] for each in models if each["difference"]["value"] < -0.08]
            models = [each for each in models if each["label"] not in left_out]
            models.sort(key=lambda each: ORDER.index(each["label"]))
            for place, model in enumerate(reversed(models)):
                colour = BASELINE if model["preset"] in BASELINES else CAPSULES
                each = {key: 100 * value for key, value in model["difference"].items()}
                axes.plot(
                    [each["low"], each["high"]], [place, place], color=colour, linewidth=2.2, solid_capstyle="butt"
                )
                axes.plot([each["value"]], [place], "o", color=colour, markersize=6)
            axes.axvline(0, color="#666666", linewidth=1)
            axes.set_yticks(range(len(models)), [NAMES.get(each["label"], each["label"]) for each in reversed(models)])
            axes.tick_params(axis="y", labelsize=8.5, length=0)
            base = found["models"][0]["mAP"]["value"]
            axes.set_title(f"{title}\n{words}; capsnet {100 * base:.1f}", fontsize=9)
            below = f"(far below: {', '.join(NAMES.get(each, each) for each in left_out)})" if left_out else ""
            below = textwrap.fill(below, 45, break_on_hyphens=False)
            axes.set_xlabel(f"test mAP − capsnet (points)\n{below}", fontsize=8.5)
            _tidy(axes)
    figure.suptitle("What helps: differences to the plain CapsNet, 95 % intervals over three seeds", fontweight="bold")
    figure.supxlabel(
        "blue: capsules, orange: baseline heads; one deviation over seeds in each frame",
        fontsize=9,
        color="#555555",
    )
    _save(figure, "differences")


def draw_convergence() -> None:
    """The paper's figure: validation mAP by epoch of the paper's rows, on each data set."""
    figure = _figure(12, 4.4)
    for axes, (data, title) in zip(figure.subplots(1, 3), DATA.items(), strict=True):
        for model in _read(f"{data}-64")["models"]:
            if model["label"] not in COLOURS:
                continue
            curves = [[100 * value for value in curve] for curve in model["validation_mAP_by_epoch"].values()]
            epochs = range(1, len(curves[0]) + 1)
            columns = list(zip(*curves, strict=True))
            colour = COLOURS[model["label"]]
            axes.fill_between(epochs, list(map(min, columns)), list(map(max, columns)), color=colour, alpha=0.15, lw=0)
            arrived = model["epochs_within_1_percent"]
            name = NAMES.get(model["label"], model["label"])
            label = f"{name} ({sum(arrived) / len(arrived):.1f})"
            axes.plot(epochs, [sum(each) / len(each) for each in columns], color=colour, linewidth=1.8, label=label)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("epoch")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8, frameon=False, loc="lower right", title="first epoch within 1 %", title_fontsize=8)
        _tidy(axes)
    figure.axes[0].set_ylabel("validation mAP (%)")
    figure.suptitle(
        "The paper's rows, and the last with the field, from scratch at 64 px: mean and range of three seeds",
        weight="bold",
    )
    _save(figure, "convergence")


def draw_classes() -> None:
    """Which classes gain, by how often they are trained on."""
    figure = _figure(12, 4.4)
    for axes, (data, title) in zip(figure.subplots(1, 3), DATA.items(), strict=True):
        model = next(each for each in _read(f"{data}-lite0")["models"] if "class_gains" in each)
        gains = sorted(model["class_gains"], key=lambda each: each[1])
        for _, value, low, high, frequency in gains:
            colour = "#009E73" if value > 0 else "#D55E00"
            axes.plot([100 * frequency] * 2, [100 * low, 100 * high], color=colour, alpha=0.18, linewidth=1)
            axes.plot([100 * frequency], [100 * value], "o", color=colour, markersize=3.6, alpha=0.8)
        for name, value, *_, frequency in (*gains[:2], *gains[-3:]):
            axes.annotate(name, (100 * frequency, 100 * value), (4, 3), textcoords="offset points", fontsize=7.5)
        values = [100 * each[1] for each in gains]
        room = 0.2 * (values[-1] - values[0])
        axes.set_ylim(values[0] - room, values[-1] + room)
        axes.axhline(0, color="#666666", linewidth=1)
        axes.set_xscale("log")
        axes.set_title(f"{title}: {sum(value > 0 for value in values)} of {len(values)} gain", fontsize=10)
        axes.set_xlabel("share of training images that show the class (%)")
        _tidy(axes)
    figure.axes[0].set_ylabel("gain of average precision (points)")
    title = "contextcaps-rw-crf-corr − capsnet class by class, pretrained backbone, three seeds with 95 % intervals"
    figure.suptitle(title, fontweight="bold")
    _save(figure, "classes")


def draw_ade20k() -> None:
    """ADE20K: differences to `capsnet` on a fine-tuned backbone, and validation mAP by epoch with the paper's stem."""
    figure = _figure(12, 4.4)
    left, right = figure.subplots(1, 2, width_ratios=[1, 1.15])
    models = [each for each in _read("ade20k-tuned")["models"] if each["difference"] is not None]
    models.sort(key=lambda each: each["difference"]["value"])
    for place, model in enumerate(models):
        colour = BASELINE if model["preset"] in BASELINES else CAPSULES
        seeds = len(model["mAP_by_seed"])
        found = model["difference"] if seeds > 1 else model["image_difference"]
        each = {key: 100 * value for key, value in found.items()}
        style = "-" if seeds > 1 else ":"
        left.plot([each["low"], each["high"]], [place, place], style, color=colour, linewidth=2.2)
        left.plot([each["value"]], [place], "o", color=colour, markersize=6)
    left.axvline(0, color="#666666", linewidth=1)
    left.set_yticks(range(len(models)), [NAMES.get(each["label"], each["label"]) for each in models])
    left.tick_params(axis="y", length=0)
    left.set_xlabel("test mAP − capsnet (points)\n95 % over two seeds; dotted: one seed, over test images", fontsize=9)
    left.set_title("Fine-tuned EfficientNet-lite0, 160 px", fontsize=10)
    by_end = sorted(_read("ade20k-stem")["models"], key=lambda each: -each["mAP"]["value"])
    for model in by_end:
        (curve,) = model["validation_mAP_by_epoch"].values()
        colour, style = STEM_STYLES[model["label"]]
        label = NAMES.get(model["label"], model["label"])
        right.plot(
            range(1, len(curve) + 1), [100 * each for each in curve], style, color=colour, linewidth=1.8, label=label
        )
    right.set_xlabel("epoch")
    right.set_xticks(range(2, 21, 2))
    right.set_ylabel("validation mAP (%)")
    right.set_ylim(bottom=0)
    right.legend(fontsize=8.5, frameon=False, loc="lower right")
    right.set_title("The paper's stem from scratch, 32 px, one seed", fontsize=10)
    for axes in (left, right):
        _tidy(axes)
    figure.suptitle("ADE20K, 150 classes", fontweight="bold")
    _save(figure, "ade20k")


def _figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _read(name: str) -> dict[str, Any]:
    return json.loads((EVIDENCE / f"{name}.json").read_text(encoding="utf-8"))


def _tidy(axes: Axes) -> None:
    axes.grid(color="#e2e2e2", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _save(figure: Figure, name: str) -> None:
    figure.savefig(HERE / f"{name}.png", dpi=110, facecolor="white", metadata={"Software": "contextcaps"})


if __name__ == "__main__":
    if sys.argv[1:]:
        collect(Path(sys.argv[1]), sys.argv[2])
    else:
        draw_differences()
        draw_convergence()
        draw_classes()
        draw_ade20k()
