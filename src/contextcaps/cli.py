"""The command line: one thin command per capability."""

import functools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import torch
import tyro
from rich.console import Console
from rich.table import Table

import contextcaps
from contextcaps.models import CapsuleNetwork, create_model, describe_model, list_models

if TYPE_CHECKING:
    from contextcaps.data import Problem, Source

__all__ = ["main"]


def models(
    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = None,
    /,
    classes: int = 150,
    image_size: int = 64,
    backbone: str = "auto",
    forward: bool = False,
) -> None:
    """List the models, or show one of them step by step.

    Args:
        name: the model to show; all of them if left out.
        classes: number of classes to build it for.
        image_size: side of the images in pixels.
        backbone: paper, small, timm:NAME, or auto (paper up to 32 px, small beyond).
        forward: build every model, show its steps, and run one forward pass.
    """
    console = Console()
    if name is None and not forward:
        table = Table("model", "what it is", title="Models")
        for each in list_models():
            table.add_row(each, describe_model(each))
        console.print(table)
        console.print("contextcaps models NAME shows one step by step.")
        return
    for each in list_models() if name is None else [name]:
        describe_model(each)  # an unknown name is refused before anything is built
        network = create_model(each, classes, image_size, backbone)
        console.print(_steps_table(network))
        console.print(_forward_pass(network))
        console.print()


def _steps_table(network: CapsuleNetwork) -> Table:
    """A network's steps with their shapes and weights."""
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


def _forward_pass(network: CapsuleNetwork, batch: int = 2) -> str:
    """One forward pass on seeded noise, in a sentence."""
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
    html: Path | None = None,
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
        split: one of the source's own splits, such as train; all of them if left out.
        images: open so many images for their sizes, evenly spread over the source; labels are counted in all.
        check_images: decode every image to the end, to find those that cannot be read.
        on_bad: stop at bad data, or skip it and report it.
    """
    from contextcaps.data.inspection import inspect_source, inspection_tables, write_page

    opened = _open(source, split, on_bad)
    inspection = inspect_source(opened, limit=None if check_images else images, check_images=check_images)
    console = Console()
    for table in inspection_tables(inspection):
        console.print(table)
    if html is not None:
        write_page(opened, inspection, html)
        console.print(f"Page written to {html}")


def data_prepare(
    source: SourceName,
    /,
    size: int = 64,
    split: SplitName = None,
    cache: Path | None = None,
    on_bad: OnBad = "stop",
) -> None:
    """Decode and resize a source once, into a copy that later runs read at full speed.

    Args:
        source: as for data inspect.
        size: side of the prepared images in pixels.
        split: one of the source's own splits; all of them if left out.
        cache: folder for prepared copies, instead of the user's cache.
        on_bad: stop at bad data, or skip it and report it.
    """
    from contextcaps.data.prepared import prepare

    opened = _open(source, split, on_bad)
    prepared = prepare(opened, size, cache)
    print(f"{len(prepared):,} images of {size}×{size} px, {len(prepared.classes)} classes, in {prepared.folder}")
    _report_skipped([*opened.problems.found, *prepared.problems])


def data_convert(
    source: SourceName,
    /,
    to: tuple[Literal["shards"], Path],
    split: SplitName = None,
    samples_per_shard: int = 1000,
    on_bad: OnBad = "stop",
) -> None:
    """Write a source as tar shards, with nothing lost: images byte by byte, labels, boxes and masks.

    Args:
        source: as for data inspect.
        to: the format, shards, and the folder to write to: --to shards FOLDER.
        split: one of the source's own splits; all of them, each to shards of its own, if left out.
        samples_per_shard: images in each tar file.
        on_bad: stop at bad data, or skip it and report it.
    """
    from contextcaps.data.convert import write_shards
    from contextcaps.data.progress import progress_of

    _, folder = to
    opened = _open(source, split, on_bad)
    parts = [_open(source, part, on_bad) for part in opened.splits] if split is None and opened.splits else [opened]
    written: set[str] = set()
    for part in parts:
        ids = {sample.id for sample in part}
        if ids <= written:  # such as VOC's trainval
            print(f"{part.split} holds nothing but samples of the splits before it; left out")
            continue
        written |= ids
        known = len(part.problems.found)
        with progress_of(part.name, len(part)) as tell:
            one_more = functools.partial(_tell_one, tell)
            shards = write_shards(part, folder, samples_per_shard=samples_per_shard, progress=one_more)
        count = len(part) - (len(part.problems.found) - known)
        print(f"{count:,} samples of {part.split or 'all'} in {len(shards)} shards under {folder}")
        _report_skipped(part.problems.found)


def _open(source: str, split: str | None, on_bad: OnBad) -> "Source":
    from contextcaps.data import open_source

    return open_source(source, on_bad=on_bad, **({} if split is None else {"split": split}))


def _tell_one(tell: Callable[[int], None], done: int, total: int) -> None:
    tell(1)


def _report_skipped(found: "Sequence[Problem]") -> None:
    """The samples that were left out, on standard error: the first ten, and how many more."""
    if found:
        problems = "".join(f"\n  {problem}" for problem in found[:10])
        more = f"\n  … and {len(found) - 10} more" if len(found) > 10 else ""
        print(f"{len(found)} left out:{problems}{more}", file=sys.stderr)


def data() -> None:
    """Look at data, prepare it, convert it: data inspect, data prepare, data convert."""


COMMANDS: dict[str, Callable[..., None]] = {"models": models, "data": data}
GROUPS: dict[str, dict[str, Callable[..., None]]] = {
    "data": {"inspect": data_inspect, "prepare": data_prepare, "convert": data_convert},
}
"""Commands with commands of their own."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; bad input ends in one message on standard error and exit code 2, no traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    commands, program, about = COMMANDS, "contextcaps", contextcaps.__doc__ or ""
    if words and words[0] in GROUPS:
        program, about = f"contextcaps {words[0]}", COMMANDS[words[0]].__doc__ or ""
        commands = GROUPS[words.pop(0)]
    try:
        tyro.extras.subcommand_cli_from_dict(commands, prog=program, description=about, args=words)
    except (ValueError, ImportError) as error:
        print(f"contextcaps: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as error:
        print(f"contextcaps: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    except KeyboardInterrupt:
        print("contextcaps: stopped", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
