"""contextcaps models: the presets, listed or step by step."""

import dataclasses
import time
from typing import TYPE_CHECKING, Annotated

import tyro

from contextcaps.cli.command import Command, CommandConsole, Flag
from contextcaps.documents import Column, Section, Table, count
from contextcaps.links import docs_page

if TYPE_CHECKING:
    from contextcaps.models import CapsuleNetwork

__all__ = ["Models"]


@dataclasses.dataclass(frozen=True)
class Models(Command):
    """List the models, or show one or all of them step by step."""

    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = None
    """The model to show; without it, and without --all, they are listed."""
    classes: int = 150
    """Number of classes to build it for."""
    image_size: int = 64
    """Side of the images in pixels."""
    backbone: str = "auto"
    """paper, small, lite0 to lite2, timm:NAME, or auto (paper up to 32 px, small beyond)."""
    all: Flag = False
    """Build and show every model."""
    no_forward: Flag = False
    """Show the steps only."""

    def run(self) -> None:
        from contextcaps.models import create_model, describe_model, list_models

        if self.all and self.name is not None:
            raise ValueError(f"--all and {self.name}: expected one of them")
        console = CommandConsole()
        if self.name is None and not self.all:
            columns = (Column("model", align="left"), Column("what it is", align="left", wrap=True))
            Table("Models", columns, [(each, describe_model(each)) for each in list_models()]).print(console)
            console.print("contextcaps models NAME shows one step by step.")
            return
        for each in list_models() if self.name is None else [self.name]:
            network = create_model(each, self.classes, self.image_size, self.backbone)
            _steps_table(network).print(console)
            if not self.no_forward:
                console.print(_forward_pass(network))
            console.print()
        if self.all:
            console.print(
                "Literal presets start with scores near 0 where there are many classes, as the paper's text has it."
            )
            console.print(f"Why, and what the others do about it: {docs_page('decisions/loss-and-collapse')}")


def _steps_table(network: "CapsuleNetwork") -> Table:
    """List a network's steps with their shapes and weights."""
    from contextcaps.models import describe_model

    name = network.config.model
    columns = (
        Column("step", align="left"),
        Column("gives, for one image", lambda shape: " × ".join(map(str, shape)), align="left"),
        Column("weights", count),
    )
    rows = [(step.name, step.shape, step.weights or None) for step in network.steps()]
    weights = sum(parameter.numel() for parameter in network.parameters())
    return Table(f"{name}: {describe_model(name)}", columns, [*rows, Section(), ("in all", "", weights)])


def _forward_pass(network: "CapsuleNetwork", batch: int = 2) -> str:
    """Run one forward pass on seeded noise and describe it in a sentence."""
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
