"""The command line: one thin command per capability."""

import contextlib
import dataclasses
import io
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro
from rich.console import Console
from rich.table import Table

import contextcaps
from contextcaps.rank_zero import is_rank_zero
from contextcaps.whole_tables import print_whole
from contextcaps.wrong_words import complain, deferred, in_one_line

if TYPE_CHECKING:  # each command imports what it needs, so that --help does not wait for torch
    from contextcaps.data import Problem, Source
    from contextcaps.models import CapsuleNetwork
    from contextcaps.training.trainer import TrainingResult

__all__ = ["main"]

Flag = Annotated[bool, tyro.conf.FlagCreatePairsOff]


class _Console(Console):
    """A console that leaves a closed pipe to `main`."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def models(
    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = None,
    /,
    classes: int = 150,
    image_size: int = 64,
    backbone: str = "auto",
    every: Annotated[Flag, tyro.conf.arg(name="all")] = False,
    no_forward: Flag = False,
) -> None:
    """List the models, or show one or all of them step by step and run a forward pass.

    Args:
        name: the model to show; without it, and without --all, they are listed.
        classes: number of classes to build it for.
        image_size: side of the images in pixels.
        backbone: paper, small, lite0, timm:NAME, or auto (paper up to 32 px, small beyond).
        every: build and show every model.
        no_forward: show the steps only.
    """
    from contextcaps.models import create_model, describe_model, list_models

    if every and name is not None:
        raise ValueError(f"--all and {name}: expected one of them")
    console = _Console()
    if name is None and not every:
        table = Table("model", "what it is", title="Models")
        for each in list_models():
            table.add_row(each, describe_model(each))
        console.print(table)
        console.print("contextcaps models NAME shows one step by step.")
        return
    for each in list_models() if name is None else [name]:
        network = create_model(each, classes, image_size, backbone)
        console.print(_steps_table(network))
        if not no_forward:
            console.print(_forward_pass(network))
        console.print()
    if every:
        console.print(
            "Literal presets start with scores near 0 where there are many classes, as the paper's text has it:"
        )
        console.print("docs/decisions/loss-and-collapse.md says why, and what the others do about it.")


def _steps_table(network: "CapsuleNetwork") -> Table:
    """A network's steps with their shapes and weights."""
    from contextcaps.models import describe_model

    name = network.config.model
    table = Table(title=f"{name}: {describe_model(name)}", title_justify="left")
    table.add_column("step")
    table.add_column("gives, for one image")
    table.add_column("weights", justify="right")
    for step in network.steps():
        table.add_row(step.name, " × ".join(map(str, step.shape)), f"{step.weights:,}" if step.weights else "–")
    table.add_section()
    table.add_row("in all", "", f"{sum(parameter.numel() for parameter in network.parameters()):,}")
    return table


def _forward_pass(network: "CapsuleNetwork", batch: int = 2) -> str:
    """One forward pass on seeded noise, in a sentence."""
    import torch

    config = network.config
    images = torch.rand(batch, config.in_channels, *config.image_size, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        start = time.perf_counter()
        output = network.eval()(images)
        seconds = time.perf_counter() - start
    low, mean, high = (float(value) for value in (output.scores.min(), output.scores.mean(), output.scores.max()))
    return (
        f"forward pass: images {list(images.shape)} → scores {list(output.scores.shape)} in {seconds * 1e3:.0f} ms, "
        f"untrained scores {low:.3f} … {high:.3f}, mean {mean:.3f}"
    )


SourceName = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
SplitName = Annotated[str | None, tyro.conf.arg(metavar="SPLIT")]
OnBad = Literal["stop", "skip"]


def data_inspect(
    source: SourceName,
    /,
    html: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    split: SplitName = None,
    images: int = 2000,
    check_images: bool = False,
    on_bad: OnBad = "stop",
) -> None:
    """Show what is in a source: counts, labels, classes, the company they keep, image sizes, problems.

    Args:
        source: scenes, ade20k:PATH, coco:PATH, voc:PATH, table:FILE, shards:PATTERN, mnist:PATH, multimnist:PATH or
            hf:NAME; options of the kind follow as ?option=value.
        html: write a page with charts and a contact sheet to this file, too.
        split: one of the source's own splits, such as train; without it all of them, of scenes train.
        images: open so many images for their sizes, evenly spread over the source; labels are counted in all.
        check_images: decode every image to the end, to find those that cannot be read.
        on_bad: whether bad data, which are reported in any case, end in exit code 2 (stop) or not (skip).
    """
    from contextcaps.data.inspection import inspect_source, inspection_tables, write_page

    if html is not None and (html.is_dir() or not html.parent.is_dir()):  # before the work, not after it
        found = "is a folder" if html.is_dir() else f"its folder is not there; make {html.parent} first"
        raise ValueError(f"{html}: expected a file to write the page to; {found}")
    opened = _open(source, split, "skip")
    inspection = inspect_source(opened, limit=None if check_images else images, check_images=check_images)
    console = _Console()
    for table in inspection_tables(inspection):
        console.print(table)
    if html is not None:
        write_page(opened, inspection, html)
        console.print(f"Page written to {html}")
    if inspection.problems and on_bad == "stop":
        count = len(inspection.problems)
        print(f"contextcaps: {count:,} problem{'s' if count != 1 else ''} found in {opened.name}", file=sys.stderr)
        raise SystemExit(2)


def data_prepare(
    source: SourceName,
    /,
    size: int = 64,
    split: SplitName = None,
    cache: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None,
    on_bad: OnBad = "stop",
) -> None:
    """Decode and resize a source once, into a copy that later runs read at full speed.

    Args:
        source: as for data inspect.
        size: side of the prepared images in pixels.
        split: one of the source's own splits; without it all of them, of scenes train.
        cache: folder for prepared copies, instead of the user's cache.
        on_bad: stop at bad data, or skip it and report it.
    """
    from contextcaps.data.prepared import prepare

    opened = _open(source, split, on_bad)
    prepared = prepare(opened, size, cache)
    part = "" if opened.split is None else f" (split {opened.split})"
    print(f"{len(prepared):,} images of {size}×{size} px{part}, {len(prepared.classes)} classes, in {prepared.folder}")
    _report_skipped(opened.name, [*opened.problems.found, *prepared.problems])


def data_convert(
    source: SourceName,
    /,
    to: Annotated[tuple[str, Path], tyro.conf.arg(metavar="shards FOLDER")],
    split: SplitName = None,
    samples_per_shard: int = 1000,
    on_bad: OnBad = "stop",
) -> None:
    """Write a source as tar shards, with nothing lost: images byte by byte, labels, boxes and masks.

    Args:
        source: as for data inspect.
        to: the format, shards, and the folder to write to: --to shards FOLDER.
        split: one of the source's own splits; without it all of them, each to shards of its own.
        samples_per_shard: images in each tar file.
        on_bad: stop at bad data, or skip it and report it.
    """
    from contextcaps.data.convert import write_all_splits

    form, folder = to
    if form != "shards":
        raise ValueError(f"--to {form} {folder}: expected shards as the format: --to shards {folder}")
    conversion = write_all_splits(
        _checked(source),
        folder,
        on_bad=on_bad,
        samples_per_shard=samples_per_shard,
        progress=True,
        **({} if split is None else {"split": split}),
    )
    for part in conversion.parts:
        count = len(part.shards)
        print(f"{part.samples:,} samples of {part.split} in {count} shard{'s' if count != 1 else ''} under {folder}")
        if part.repeated:
            print(f"  {part.repeated:,} more of {part.split} were met above already and are not written twice")
    _report_skipped(source, conversion.problems.found)


def _open(source: str, split: str | None, on_bad: OnBad) -> "Source":
    from contextcaps.data import open_source

    return open_source(_checked(source), on_bad=on_bad, **({} if split is None else {"split": split}))


def _checked(source: str) -> str:
    """A source's name, unless its location was forgotten."""
    from contextcaps.data import source_kinds

    kind, colon, rest = source.partition(":")
    if colon and kind in source_kinds() and kind != "scenes" and re.fullmatch(r"(\?.*=.*)?", rest):
        raise ValueError(f"{source}: nothing after the colon; expected where the data are, such as {kind}:PATH")
    return source


def _report_skipped(source: str, found: "Sequence[Problem]") -> None:
    """How many samples were left out, on standard error, and the first problems."""
    from contextcaps.data.problems import left_out

    if found:
        print(left_out(source, found), file=sys.stderr)


def data() -> None:
    """Look at data, prepare it, convert it: data inspect, data prepare, data convert."""


def train() -> None:
    """Train a network on a source, or go on with a run that was stopped."""


def _train_command(words: list[str]) -> Callable[..., None]:
    """The command `train`: its flags are the fields of `TrainConfig`, whose defaults a YAML file may change."""
    from contextcaps.training.config import TrainConfig
    from contextcaps.training.trainer import resume as resume_run
    from contextcaps.training.trainer import train as train_run

    file = _value_of("--config", words)
    defaults = TrainConfig()
    if file is not None:
        if not Path(file).is_file():
            raise ValueError(f"--config {file}: no such file; expected YAML with fields of the configuration")
        try:
            defaults = TrainConfig.from_yaml(Path(file))
        except ValueError as error:
            raise ValueError(f"--config {error}") from None

    def command(
        run: Annotated[TrainConfig, tyro.conf.arg(name="")] = defaults,
        config: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
        resume: Annotated[Path | None, tyro.conf.arg(metavar="RUN")] = None,
        quiet: Flag = False,
    ) -> None:
        """Train a network; everything about it is kept in one folder, the run.

        Flags override the YAML file of --config, which overrides the defaults.

        Ctrl-C stops after the step and saves.

        Args:
            run: how to train.
            config: a YAML file with any of the fields below, such as a run's config.yaml.
            resume: go on with a run that was stopped, killed or failed. Takes everything from it, so no other flag.
            quiet: no progress, only the summary.
        """
        if resume is not None:
            flags = [word.partition("=")[0] for word in words if word.startswith("-")]
            others = [flag for flag in flags if flag not in ("--resume", "--quiet")]
            if others:
                raise ValueError(f"--resume takes everything from the run; leave out {' '.join(others)}")
            result = resume_run(resume, progress=not quiet)
        else:
            for source in filter(None, (run.data, run.val_data)):
                _checked(source)
            options = {**defaults.options, **run.options}  # --set adds to the file's
            result = train_run(dataclasses.replace(run, options=options), progress=not quiet)
        if is_rank_zero():
            _summarise(result)

    return command


def ablate() -> None:
    """Train several models with several seeds alike, and report which is better, by how much, how surely."""


def _ablate_command(words: list[str]) -> Callable[..., None]:
    """The command `ablate`: flags of its own, and those of `train`, which hold for all runs."""
    from contextcaps.experiments.ablation import ablate as run_ablation
    from contextcaps.experiments.ablation import show_ablation
    from contextcaps.experiments.ablation.modest import modest_defaults, modest_scenes
    from contextcaps.training.config import TrainConfig

    defaults, is_modest = modest_defaults(_value_of("--data", words), _value_of("--accelerator", words))
    if _value_of("--model", words) is not None:
        raise ValueError("--model: name the models with --models, with commas between them")

    def command(
        models: Annotated[tuple[str, ...], tyro.conf.arg(metavar="A,B,…")] = ("capsnet,contextcaps",),
        seeds: int = 5,
        tries: int = 1,
        try_epochs: Annotated[int | None, tyro.conf.arg(metavar="N")] = None,
        try_lr: tuple[float, ...] = (1.0, 0.333333, 3.0),
        try_losses: tuple[str, ...] = ("margin", "bce", "asl"),
        baseline: Annotated[str | None, tyro.conf.arg(metavar="MODEL")] = None,
        test_data: Annotated[str | None, tyro.conf.arg(metavar="SOURCE")] = None,
        at_once: Annotated[str, tyro.conf.arg(metavar="N|auto")] = "auto",
        resamples: Annotated[int | None, tyro.conf.arg(metavar="N")] = None,
        report_only: Flag = False,
        quiet: Flag = False,
        run: Annotated[TrainConfig, tyro.conf.arg(name="")] = defaults,
    ) -> None:
        """Train models × seeds on the same division, schedule and budget; end with a page that compares them.

        Stopped or killed, the same command goes on; more models and seeds can be added.

        Args:
            models: PRESET, PRESET:NAME=VALUE,… or LABEL=PRESET:NAME=VALUE,…; the first is the baseline.
            seeds: how many, from --seed on.
            tries: points of hyper-parameters for each model, chosen from on the validation part; 1 for no search.
            try_epochs: of each try; by default all, as fewer favour high learning rates.
            try_lr: factors of the learning rate to try.
            try_losses: losses to try.
            baseline: the model that differences are taken from.
            test_data: another source to test on, instead of the test part of the data.
            at_once: runs at the same time; auto: as many as fit on a GPU, at most 4, and 1 on a CPU.
            resamples: of the bootstrap over test images.
            report_only: write the report of what is finished in --out, and train nothing.
            quiet: no progress, only the results.
            run: how to train; the same for all.
        """
        if at_once != "auto" and not at_once.isdecimal():
            raise ValueError(f"at_once: expected a whole number of at least 1, or auto, got {at_once!r}")
        for source in filter(None, (run.data, run.val_data, test_data)):
            _checked(source)
        options = {**defaults.options, **run.options}
        config = dataclasses.replace(run, options=options)
        if is_modest and not report_only:
            config = dataclasses.replace(config, data=modest_scenes(config.image_size))
            if not quiet:
                print(f"scenes on a CPU are kept few and small: --data '{config.data}'", file=sys.stderr)
        ablation = run_ablation(
            models,
            config,
            seeds=seeds,
            tries=tries,
            try_epochs=try_epochs,
            try_lr=try_lr,
            try_losses=try_losses,
            baseline=baseline,
            test_data=test_data,
            at_once=None if at_once == "auto" else int(at_once),
            resamples=resamples,
            report_only=report_only,
            progress=not quiet,
        )
        show_ablation(ablation, _Console())
        if ablation.failures:
            count = len(ablation.failures)
            raise OSError(f"{count} run{'s' if count != 1 else ''} failed; the same command tries again")

    return command


def _value_of(flag: str, words: list[str]) -> str | None:
    """What follows a flag, before the others are parsed."""
    for word, following in zip(words, [*words[1:], None], strict=True):
        if word == flag:
            return following
        if word.startswith(f"{flag}="):
            return word.partition("=")[2]
    return None


def _summarise(result: "TrainingResult") -> None:
    """The end of a training, in a table and the commands that come next."""
    console, best = _Console(), result.best
    table = Table(title=f"Run {result.folder}", title_justify="left", show_header=False)
    table.add_row("epochs", f"{len(result.history)}, the best is {best['epoch']:.0f}")
    table.add_row("validation mAP", f"{100 * best['val_mAP']:.2f} (constant prior {100 * best['prior_mAP']:.2f})")
    table.add_row("micro, sample AP", f"{100 * best['val_micro_AP']:.2f}, {100 * best['val_samples_AP']:.2f}")
    table.add_row("loss", f"{best['train_loss']:.3f} in training, {best['val_loss']:.3f} in validation")
    table.add_row("weights", f"{result.parameters:,}")
    table.add_row("model", str(result.model))
    table.add_row("curves", str(result.folder / "curves.png"))
    console.print(table)
    console.print(f"contextcaps evaluate {result.folder}", highlight=False)
    console.print(f"contextcaps tag {result.folder} IMAGES...", highlight=False)


def tag(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_OR_MODEL")],
    images: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES...")] = (),
    /,
    form: Annotated[
        Literal["jsonl", "csv", "parquet"] | None, tyro.conf.arg(name="format", metavar="{jsonl,csv,parquet}")
    ] = None,
    out: Annotated[Path | None, tyro.conf.arg(metavar="FILE")] = None,
    threshold: Annotated[float | None, tyro.conf.arg(metavar="SCORE")] = None,
    top_k: Annotated[int | None, tyro.conf.arg(metavar="N")] = None,
    scores: Literal["tags", "all"] = "tags",
    known: Annotated[str | None, tyro.conf.arg(metavar="CLASS=yes,CLASS=no,…")] = None,
    batch_size: int = 64,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    workers: Annotated[int | None, tyro.conf.arg(metavar="N")] = None,
    quiet: Flag = False,
) -> None:
    """Tag images with a trained model: a row for each, with classes and scores.

    A file that cannot be read has a row that says why; the exit code is then 1.

    Args:
        model: a run's folder, a model's folder, or a model's name on the Hugging Face Hub.
        images: files, folders, patterns in quotes such as 'photos/**/*.jpg', or - for names on standard input.
        form: jsonl, csv or parquet; by default as the suffix of --out says, or jsonl.
        out: the file to write, instead of standard output.
        threshold: the score from which any class counts as present, instead of each class's own.
        top_k: at most so many tags for each image; with --threshold 0 exactly so many.
        scores: write the scores of the tags, or of all classes.
        known: what is known of all these images, such as "oven=yes,bed=no"; the model takes it into account.
        batch_size: images to compute at once.
        device: where to compute; auto takes a GPU if there is one.
        workers: images to decode at once; as many as there are cores by default.
        quiet: no progress and no closing line.
    """
    from contextcaps.data.progress import progress_of
    from contextcaps.tagging import check_output, count_images, find_images, load, open_output, parse_known, write_tags

    if not images:
        raise ValueError("no images: expected files, folders, patterns, or - for names on standard input")
    form = check_output(out, form)
    told = None if known is None else parse_known(known)
    tagger = load(model, device)
    taggings = tagger.tag_stream(
        find_images(images), threshold=threshold, top_k=top_k, batch_size=batch_size, workers=workers, known=told
    )
    shown = not quiet and (out is not None or not sys.stdout.isatty())
    with (
        contextlib.closing(taggings),
        open_output(out, form, tagger.classes, scores == "all", given=told is not None) as output,
        progress_of("tagging", count_images(images) if shown else None, shown) as tell,
    ):
        count = write_tags(taggings, output, tell)
    if not quiet:
        plural = "s" if count.tagged != 1 else ""
        print(f"{count.tagged:,} image{plural} tagged, {count.failed:,} could not be read", file=sys.stderr)
    if count.failed:
        raise SystemExit(1)


def evaluate(
    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_OR_MODEL")],
    /,
    data: Annotated[str | None, tyro.conf.arg(metavar="SOURCE")] = None,
    split: SplitName = None,
    out: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None,
    batch_size: int = 64,
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto",
    accelerator: Literal["auto", "cpu", "gpu"] = "auto",
    devices: int = 1,
    nodes: int = 1,
    no_prepare: Flag = False,
    cache: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None,
    on_bad: Annotated[OnBad | None, tyro.conf.arg(metavar="{stop,skip}")] = None,
    resamples: Annotated[int | None, tyro.conf.arg(metavar="N")] = None,
    seed: int = 0,
    known: Annotated[str | None, tyro.conf.arg(metavar="SHARE,…")] = None,
    quiet: Flag = False,
) -> None:
    """Measure a trained model: all metrics, beside those of the constant prior.

    Without --data, on the test part of what it was trained on, or validation.

    Args:
        model: a run's folder, a model's folder, or a model's name on the Hugging Face Hub.
        data: another source; all of it, unless it has a test or validation part of its own.
        split: the part to measure on: train, val or test of the run's data; one of the source's own splits; or all.
        out: where JSON, Markdown and plots go; by default into the run, or to ./evaluation for a model's folder.
        batch_size: images per process to compute at once.
        precision: of the computation; auto is fp32.
        accelerator: where to compute; auto takes a GPU if there is one.
        devices: processes on each machine; every image is counted exactly once.
        nodes: machines, as for train.
        no_prepare: decode the images as they are needed, without a prepared copy.
        cache: folder for prepared copies, instead of the run's or the user's cache.
        on_bad: stop at bad data, or skip it and report it; by default as in training.
        resamples: of the bootstrap; by default 1000, fewer for very much data.
        seed: of the bootstrap, and of which labels are known.
        known: tell the model these shares of each image's labels, such as 0.25,0.5, and measure it on the others.
        quiet: no progress, only the tables.
    """
    from contextcaps.evaluation.evaluate import evaluate as evaluate_model
    from contextcaps.evaluation.known.measuring import parse_shares
    from contextcaps.evaluation.known.report import known_table
    from contextcaps.evaluation.report import evaluation_table

    measured = evaluate_model(
        model,
        None if data is None else _checked(data),
        split=split,
        out=out,
        batch_size=batch_size,
        precision=precision,
        accelerator=accelerator,
        devices=devices,
        nodes=nodes,
        prepare=False if no_prepare else None,
        cache=cache,
        on_bad=on_bad,
        resamples=resamples,
        seed=seed,
        known=() if known is None else parse_shares(known),
        progress=not quiet,
    )
    if is_rank_zero():
        console = _Console()
        for table in evaluation_table(measured.evaluation):
            console.print(table)
        if measured.known is not None:
            print_whole(console, known_table(measured.known))
        written = f"Written to {measured.folder}: {', '.join(path.name for path in measured.files)}"
        console.print(written, soft_wrap=True, highlight=False)


def demo(
    *,
    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs/demo"),
    seed: int = 0,
    cache: Annotated[Path | None, tyro.conf.arg(metavar="FOLDER")] = None,
    quiet: Flag = False,
) -> None:
    """Train capsnet and contextcaps on drawn scenes, compare them, tag six images.

    Takes minutes on two cores. Stopped or killed, it goes on when called again.

    Args:
        out: where runs, tables and pictures go; what a demo has finished there is used again.
        seed: of everything that is random in training, and of the choice of the six images.
        cache: folder for prepared copies, instead of the user's cache.
        quiet: no progress, only the results.
    """
    from contextcaps.experiments import DemoSettings, run_demo, show_demo

    show_demo(run_demo(out, DemoSettings(seed=seed), cache=cache, progress=not quiet), _Console())


def bench(
    *,
    sizes: Annotated[tuple[str, ...], tyro.conf.arg(metavar="SIZE...")] = (),
    heads: Annotated[tuple[str, ...], tyro.conf.arg(metavar="HEAD...")] = (),
    ways: Annotated[tuple[str, ...], tyro.conf.arg(metavar="WAY...")] = (),
    precisions: Annotated[tuple[Literal["fp32", "bf16"], ...], tyro.conf.arg(metavar="{fp32,bf16}...")] = (),
    modes: Annotated[tuple[Literal["forward", "step"], ...], tyro.conf.arg(metavar="{forward,step}...")] = (
        "forward",
        "step",
    ),
    batch: Annotated[int | None, tyro.conf.arg(metavar="B")] = None,
    capsules: Annotated[int | None, tyro.conf.arg(metavar="K")] = None,
    classes: Annotated[int | None, tyro.conf.arg(metavar="J")] = None,
    crf_rank: Annotated[int | None, tyro.conf.arg(metavar="RANK")] = None,
    sweep: Annotated[tuple[Literal["B", "K", "J"], ...], tyro.conf.arg(metavar="{B,K,J}...")] = (),
    points: int = 5,
    networks: Annotated[tuple[str, ...], tyro.conf.arg(metavar="MODEL...")] = (),
    backbones: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME@PIXELS...")] = ("small@64", "timm:resnet18@224"),
    device: Literal["auto", "cpu", "cuda"] = "auto",
    seconds: float = 1.0,
    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("runs/bench"),
    quiet: Flag = False,
) -> None:
    """Measure time and memory of the capsule head: eager, compiled, fused, lean.

    Beside them stand the machine's ceilings and the floor that follows from them.

    Args:
        sizes: paper, small (for a CPU), one (a single image), j1000, j5000 or tiny; by default paper on a GPU, small on
            a CPU.
        heads: capsnet, capsnet-rw-crf, capsnet-rw-crf-corr (contextcaps's, too), capsnet-rw-crf-corr-joined (with
            routing); by default all on a GPU, capsnet and capsnet-rw-crf-corr on a CPU.
        ways: eager, compiled, fused, lean; by default all.
        precisions: by default both on a GPU, fp32 on a CPU.
        modes: the forward pass alone, without gradients, or a training step, forward and backward.
        batch: B, in place of the sizes'.
        capsules: K, in place of the sizes'.
        classes: J, in place of the sizes'.
        crf_rank: rank of the CRF's pairwise matrix, in place of the sizes'.
        sweep: vary these of the first size, by powers of two, and draw how the costs grow.
        points: sizes along a sweep.
        networks: models to measure as whole networks, too, such as capsnet contextcaps.
        backbones: that these have, and the side of the images in pixels.
        device: where to compute; auto takes a GPU if there is one.
        seconds: to spend on each measurement, at least.
        out: where tables and pictures go.
        quiet: no progress, only the tables.
    """
    from contextcaps.experiments.bench import BenchSettings, run_bench, show_bench

    given = {"batch": batch, "capsules": capsules, "classes": classes, "crf_rank": crf_rank}
    settings = BenchSettings(
        sizes=sizes,
        heads=heads,
        ways=ways,
        precisions=precisions,
        modes=modes,
        changes={name: value for name, value in given.items() if value is not None},
        sweep=sweep,
        points=points,
        networks=networks,
        backbones=backbones,
        device=device,
        seconds=seconds,
    )
    show_bench(run_bench(settings, out, progress=not quiet), _Console())


COMMANDS: dict[str, Callable[..., None]] = {
    "train": train,
    "evaluate": evaluate,
    "tag": tag,
    "demo": demo,
    "ablate": ablate,
    "models": models,
    "bench": bench,
    "data": data,
}
GROUPS: dict[str, dict[str, Callable[..., None]]] = {
    "data": {"inspect": data_inspect, "prepare": data_prepare, "convert": data_convert},
}
"""Commands with commands of their own."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; bad input ends in one message on standard error and exit code 2, no traceback."""
    # Before torch is loaded: threads that spin for long while they wait make two trainings on the same cores eight
    # times slower each; spinning briefly costs a tenth on a quiet machine (docs/results.md).
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        try:
            if words == ["--version"]:
                print(f"contextcaps {contextcaps.__version__}")
                return
            _parse(words)()
        finally:
            sys.stdout.flush()  # here, so that a closed pipe is met below rather than at the interpreter's end
    except (ValueError, ImportError) as error:
        complain(str(error))
        raise SystemExit(2) from None
    except BrokenPipeError:  # whoever read the output has seen enough, such as head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still to be flushed
        raise SystemExit(141) from None
    except OSError as error:
        complain(str(error))
        raise SystemExit(1) from None
    except KeyboardInterrupt as error:
        if is_rank_zero():
            complain(str(error) or "stopped")
        raise SystemExit(130) from None


def _parse(words: list[str]) -> Callable[[], None]:
    """What the words ask for, to be called. Wrong ones end in one line and exit code 2; --help in its page."""
    commands, program = COMMANDS, "contextcaps"
    about = f"{contextcaps.__doc__}\n\ncontextcaps --version prints the version."
    if words and words[0] in GROUPS:
        program, about = f"contextcaps {words[0]}", COMMANDS[words[0]].__doc__ or ""
        commands = GROUPS[words.pop(0)]
    complaint = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaint):
            made = {"train": _train_command, "ablate": _ablate_command}  # their flags are those of a dataclass
            if words and program == "contextcaps" and words[0] in made:
                program = f"contextcaps {words[0]}"
                return tyro.cli(deferred(made[words[0]](words[1:])), prog=program, args=words[1:])
            offered = {name: deferred(command) for name, command in commands.items()}
            return tyro.extras.subcommand_cli_from_dict(offered, prog=program, description=about, args=words)
    except SystemExit as end:
        if end.code:
            told = in_one_line(complaint.getvalue())
            if program == "contextcaps" and words and words[0] in commands:  # tyro names the page above
                told = re.sub(r"see contextcaps.*--help$", f"see {program} {words[0]} --help", told)
            complain(told)
        raise


if __name__ == "__main__":
    main()
