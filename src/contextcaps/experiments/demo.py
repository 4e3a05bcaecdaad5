"""The demo: two networks trained on drawn scenes within minutes, compared, and one of them at work.

Whatever stops it, the next call goes on: finished runs are kept, an unfinished one is resumed.
"""

import dataclasses
import io
import shlex
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table
from rich.text import Text

from contextcaps.atomic import write_atomically
from contextcaps.data import open_source, prepare
from contextcaps.evaluation.evaluate import evaluate
from contextcaps.experiments.comparison import Comparison, compare
from contextcaps.experiments.comparison_table import comparison_table
from contextcaps.experiments.demo_documents import demo_json, demo_markdown, gallery_caption
from contextcaps.experiments.demo_settings import MODELS, DemoSettings, commands_of
from contextcaps.experiments.gallery import TaggedImage, judge, write_gallery
from contextcaps.tagging import load
from contextcaps.training.config import TrainConfig
from contextcaps.training.curves import write_convergence
from contextcaps.training.loop import StoppedRun
from contextcaps.training.runs import Run, RunError
from contextcaps.training.trainer import resume, train

__all__ = ["Demo", "run_demo", "show_demo"]


_TABLE_WIDTH = 100


@dataclasses.dataclass(frozen=True)
class Demo:
    """A finished demo."""

    folder: Path
    comparison: Comparison
    tagged: tuple[TaggedImage, ...]
    files: dict[str, Path]
    """Name → where: convergence, gallery, page, figures, images."""
    commands: tuple[str, ...]
    """That make the comparison again, step by step."""
    test_data: str

    def places(self) -> list[tuple[str, str]]:
        """Files and folders in the demo's, and what is in them."""
        return [
            (self.files["convergence"].name, "validation mAP by epoch"),
            (self.files["gallery"].name, f"{len(self.tagged)} tagged test images: right, wrong, missed"),
            (self.files["page"].name, "the table, and the commands that make it again"),
            (self.files["figures"].name, "all figures"),
            ("MODEL/evaluation/", f"every metric and class; MODEL is {' or '.join(MODELS)}"),
            ("MODEL/model/", "the trained network"),
        ]

    def next_steps(self) -> list[tuple[str, str]]:
        """Commands to try, and what they do."""
        run = shlex.quote(str(self.folder / MODELS[-1]))
        images = shlex.quote(str(self.files["images"]))
        return [
            (f"contextcaps tag {run} {images}", "the tagged images as JSON lines; any image files will do"),
            (f"contextcaps evaluate {run} --data '{self.test_data}&seed=1'", "measure it on other scenes"),
            ("contextcaps data inspect coco:PATH", "your own data: COCO, VOC, ADE20K, a table of files, …"),
            ("contextcaps train --data coco:PATH --out runs/mine", "train on it"),
        ]


def run_demo(
    out: Path | str = "runs/demo",
    settings: DemoSettings | None = None,
    *,
    cache: Path | str | None = None,
    progress: bool = True,
) -> Demo:
    """Train `capsnet` and `contextcaps` on scenes, measure both on the test part, compare them, and tag six images.

    Args:
        out: the demo's folder: a run for each network, the comparison, the pictures. If it holds a demo with the same
            settings, that one is finished.
        settings: how large.
        cache: folder for prepared copies of the images, instead of the user's cache.
        progress: show progress on the error stream.

    Raises:
        ValueError: the folder holds something else.
        StoppedRun: somebody pressed Ctrl-C; the next call goes on.
    """
    folder = Path(out).expanduser()
    settings = DemoSettings() if settings is None else settings
    if folder.exists() and not folder.is_dir():
        raise RunError(f"{folder}: expected a folder for the demo, got a file; choose another with --out")
    if (folder / "config.yaml").exists():
        raise RunError(f"{folder}: holds a run; choose another folder for the demo with --out")
    configs = {model: settings.config(model, folder / model, cache) for model in MODELS}
    for config in configs.values():
        _check_settings(config)

    steps = len(MODELS) + 3
    _say(f"[1/{steps}] preparing scenes", progress)
    for name in (configs[MODELS[0]].data, configs[MODELS[0]].val_data, settings.test_data):
        prepare(open_source(str(name)), settings.image_size, cache, progress=progress)
    for number, (model, config) in enumerate(configs.items(), start=2):
        _say(f"[{number}/{steps}] training {model}: {settings.images:,} scenes, {settings.epochs} epochs", progress)
        _finish_training(config, folder, progress)
    _say(f"[{steps - 1}/{steps}] measuring both on {settings.test_images:,} test scenes", progress)
    measured = {
        model: evaluate(
            folder / model,
            settings.test_data,
            out=folder / model / "evaluation",
            accelerator="cpu",
            cache=cache,
            resamples=settings.resamples,
            seed=settings.seed,
            progress=progress,
        )
        for model in MODELS
    }
    comparison = compare(measured, {model: folder / model for model in MODELS})
    _say(f"[{steps}/{steps}] drawing", progress)
    tagged = _tag_images(folder, settings)
    files = {
        "convergence": folder / "convergence.png",
        "gallery": folder / "tagged.png",
        "page": folder / "comparison.md",
        "figures": folder / "comparison.json",
        "images": folder / "images",
    }
    commands = commands_of(folder, settings)
    title = f"Validation mAP by epoch: {settings.images:,} scenes of {settings.image_size}×{settings.image_size} px"
    write_convergence({run.name: run.history for run in comparison.runs}, files["convergence"], title, settings.seed)
    shown = f"{MODELS[-1]} on {len(tagged)} test images"
    write_gallery(tagged, files["gallery"], shown, gallery_caption(settings))
    write_atomically(files["figures"], demo_json(comparison, tagged, settings, commands))
    write_atomically(files["page"], demo_markdown(comparison, settings, commands))  # last: it speaks of all the others
    return Demo(folder, comparison, tagged, files, commands, settings.test_data)


def show_demo(demo: Demo, console: Console) -> None:
    """Show the table, what it says, where everything is, and what to try next."""
    # Whole in a log, too, for which rich assumes 80 columns; on a narrow terminal rather broken than cut off.
    console.width = max(console.width, _TABLE_WIDTH)
    console.print(comparison_table(demo.comparison, "Comparison on the test part"))
    console.print()
    for finding in demo.comparison.findings():
        console.print(finding, highlight=False, markup=False)
    console.print(f"\nIn {demo.folder}:", style="bold", highlight=False, markup=False)
    grid = Table.grid(padding=(0, 2))
    for place, what in demo.places():
        grid.add_row(Text(f"  {place}", no_wrap=True), Text(what))
    console.print(grid)
    console.print("\nWhat to try next:", style="bold")
    for command, what in demo.next_steps():
        console.print(f"  {command}\n      {what}", highlight=False, markup=False, soft_wrap=True)


def _check_settings(config: TrainConfig) -> None:
    """A run that is there already was begun with the same settings."""
    assert config.out is not None
    if not Path(config.out, "config.yaml").is_file():
        return
    found = Run.open(config.out).config
    # Where a run lies and where its images are cached changes nothing about it.
    found = dataclasses.replace(found, out=config.out, cache=config.cache)
    for field in dataclasses.fields(config):
        there, wanted = getattr(found, field.name), getattr(config, field.name)
        if there != wanted:
            raise RunError(
                f"{config.out}: holds a run with other settings ({field.name}: {there}, not {wanted}); choose another "
                "folder with --out, or remove this one"
            )


def _finish_training(config: TrainConfig, folder: Path, progress: bool) -> None:
    """Train, go on with training, or do nothing if the run is finished."""
    assert config.out is not None
    try:
        if not Path(config.out, "config.yaml").is_file():
            train(config, progress=progress)
            return
        run = Run.open(config.out)
        if run.facts.get("state") == "finished" and run.model_folder.is_dir() and (run.folder / "metrics.csv").exists():
            _say(f"{run.folder} is finished already", progress)
        else:
            resume(config.out, progress=progress)
    except StoppedRun as stopped:
        went, _, _ = str(stopped).partition("; go on with")
        raise StoppedRun(f"{went}; go on with: contextcaps demo --out {shlex.quote(str(folder))}") from None


def _chosen(settings: DemoSettings) -> list[int]:
    """Which test images are tagged: drawn by the seed, not by how well it went."""
    count = min(settings.tagged, settings.test_images)
    return sorted(np.random.default_rng(settings.seed).choice(settings.test_images, count, replace=False).tolist())


def _tag_images(folder: Path, settings: DemoSettings) -> tuple[TaggedImage, ...]:
    """Draw the chosen test images large, write them as files, and tag the files as `contextcaps tag` would."""
    source = open_source("scenes", split="test", count=settings.test_images, size=settings.tagged_size)
    (folder / "images").mkdir(exist_ok=True)
    samples, paths = [source.sample(index) for index in _chosen(settings)], []
    for sample in samples:
        path = folder / "images" / f"{sample.id}.png"
        buffer = io.BytesIO()
        Image.fromarray(np.asarray(sample.image)).save(buffer, "PNG")
        write_atomically(path, buffer.getvalue())
        paths.append(path)
    tagger = load(folder / MODELS[-1], "cpu")
    tagged = []
    for sample, tagging in zip(samples, tagger.tag(paths, on_bad="stop"), strict=True):
        truth = tuple(source.classes[label] for label in sample.labels)
        tags = judge(tagging, truth, tagger.classes, tagger.thresholds)
        tagged.append(TaggedImage(sample.id, np.asarray(sample.image), truth, tags))
    return tuple(tagged)


def _say(text: str, progress: bool) -> None:
    if progress:
        print(text, file=sys.stderr, flush=True)
