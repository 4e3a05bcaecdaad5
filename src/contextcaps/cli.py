"""The command line: one thin command per capability."""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Annotated

import torch
import tyro
from rich.console import Console
from rich.table import Table

from contextcaps.models import CapsuleNetwork, create_model, describe_model, list_models

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


COMMANDS: dict[str, Callable[..., None]] = {"models": models}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command; bad input ends in one line on standard error and exit code 2."""
    try:
        tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="contextcaps",
            description="Multi-label image tagging with context-aware capsule networks.",
            args=arguments,
        )
    except (ValueError, ImportError) as error:
        print(f"contextcaps: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
