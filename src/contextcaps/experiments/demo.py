"""The demo: a small fixed ablation, `capsnet` against `contextcaps` on drawn scenes, and a page of tagged images.

Whatever stops it, the next call goes on, as any ablation does.
"""

import dataclasses
import io
import shlex
import sys
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console

from contextcaps.atomic import write_atomically
from contextcaps.data import open_source
from contextcaps.experiments.ablation.ablation import Ablation, ablate, show_ablation
from contextcaps.experiments.ablation.config import ablate_command
from contextcaps.experiments.ablation.results import run_folder
from contextcaps.experiments.demo_config import MODELS, DemoConfig
from contextcaps.experiments.small_scenes import SMALL_TRAINING
from contextcaps.tagging import Gallery, JudgedTag, judge, load

__all__ = ["Demo", "TaggedImage", "run_demo", "show_demo"]


@dataclasses.dataclass(frozen=True)
class TaggedImage:
    """An image with its true classes and what the model said of it."""

    path: Path
    truth: tuple[str, ...]
    tags: tuple[JudgedTag, ...]
    """As `judge` gives them."""


@dataclasses.dataclass(frozen=True)
class Demo:
    """A finished demo."""

    config: DemoConfig
    ablation: Ablation
    tagged: tuple[TaggedImage, ...]
    gallery: Path
    """The page of the tagged images."""
    images: Path
    """The folder with the tagged images themselves."""

    @property
    def folder(self) -> Path:
        return self.ablation.folder

    @property
    def run(self) -> Path:
        """The run that tagged the images."""
        return _run(self.config)

    def places(self) -> list[tuple[str, str]]:
        """List files and folders in the demo's, and what is in them."""
        run = _run(self.config, "MODEL").relative_to(self.folder)
        return [
            (self.ablation.files["page"].name, "the whole comparison as a page; ablation.md and .json say the same"),
            (self.ablation.files["convergence"].name, "validation mAP by epoch"),
            (self.gallery.name, f"{len(self.tagged)} drawn test images with their tags: right, wrong, missed"),
            (f"{run}/evaluation/test/", f"every metric and class; MODEL is {' or '.join(MODELS)}"),
            (f"{run}/model/", "the trained network"),
        ]

    def next_steps(self) -> list[tuple[str, str]]:
        """List commands to try, and what they do."""
        plan = self.config.ablation()
        run, images = (shlex.quote(str(each)) for each in (self.run, self.images))
        return [
            (f"contextcaps tag {images} --model {run}", "the tags; the model knows drawings, not photographs"),
            (f"contextcaps evaluate {run} --data '{plan.test_data}&seed=1'", "measure it on other drawings"),
            (ablate_command(dataclasses.replace(plan, seeds=3)), "the same over three seeds; what is trained is kept"),
            ("contextcaps data inspect coco:PATH", "your own data: COCO, VOC, ADE20K, a table of files, …"),
            ("contextcaps train --data coco:PATH --out runs/mine", "train on it"),
        ]


def run_demo(config: DemoConfig | None = None) -> Demo:
    """Train `capsnet` and `contextcaps` on drawn scenes, compare them on the test part, and tag six images.

    Raises:
        ValueError: the folder holds something else.
        OSError: a training failed.
        KeyboardInterrupt: somebody pressed Ctrl-C; the next call goes on.
    """
    config = DemoConfig() if config is None else config
    plan = config.ablation()
    if not config.quiet:
        what = f"{config.images:,} drawn scenes, {config.epochs} epochs each"
        print(f"training {' and '.join(MODELS)} on {what}, one after the other", file=sys.stderr, flush=True)
    ablation = ablate(plan, progress=not config.quiet)
    ablation.require_success()
    images, gallery = ablation.folder / "images", ablation.folder / "tagged.html"
    tagged = _tag_images(config, images, gallery)
    return Demo(config, ablation, tagged, gallery, images)


def show_demo(demo: Demo, console: Console) -> None:
    """Show the tables, what they say, where everything is, and what to try next."""
    show_ablation(demo.ablation, console)
    console.print(f"\nIn {demo.folder}:", style="bold", highlight=False, markup=False)
    width = max(len(place) for place, _ in demo.places())
    for place, what in demo.places():
        console.print(f"  {place:{width}}  {what}", highlight=False, markup=False, soft_wrap=True)
    console.print("\nWhat to try next:", style="bold")
    for command, what in demo.next_steps():
        console.print(f"  {command}\n      {what}", highlight=False, markup=False, soft_wrap=True)


def _run(config: DemoConfig, model: str = MODELS[-1]) -> Path:
    return run_folder(config.ablation().folder, model, config.seed)


def _tag_images(config: DemoConfig, folder: Path, page: Path) -> tuple[TaggedImage, ...]:
    """Draw some test images large, write them as files, and tag the files as `contextcaps tag --html` would."""
    source = open_source("scenes", split="test", count=config.test_images, size=config.tagged_size)
    count = min(config.tagged, config.test_images)
    chosen = np.random.default_rng(config.seed).choice(config.test_images, count, replace=False)  # not by how it went
    folder.mkdir(exist_ok=True)
    samples, paths = [source.sample(index) for index in sorted(chosen.tolist())], []
    for sample in samples:
        path = folder / f"{sample.id}.png"
        buffer = io.BytesIO()
        Image.fromarray(np.asarray(sample.image)).save(buffer, "PNG")
        write_atomically(path, buffer.getvalue())
        paths.append(path)
    tagger = load(_run(config), "cpu")
    tagged = []
    with Gallery() as gallery:
        for path, sample, tagging in zip(paths, samples, tagger.tag(paths, on_bad="stop"), strict=True):
            truth = tuple(source.classes[label] for label in sample.labels)
            tags = judge(tagging, truth, tagger.classes, tagger.thresholds)
            gallery.add(tagging, tags, truth)
            tagged.append(TaggedImage(path, truth, tags))
        gallery.write(page, f"{MODELS[-1]} on {len(tagged)} drawn test images", _caption(config))
    return tuple(tagged)


def _caption(config: DemoConfig) -> str:
    """Say how the tagged images were chosen, and what the figures beneath them are."""
    side = SMALL_TRAINING.side
    return (
        f"They are pictures that the library draws, {config.tagged} of {config.test_images:,} test images, chosen at "
        f"random with seed {config.seed}; the model sees them at {side}×{side} px. Thresholds were tuned on the "
        "validation part."
    )
