"""contextcaps models: the shipped models and the presets, listed or step by step."""

import dataclasses
import importlib.util
import time
from typing import TYPE_CHECKING, Annotated

import tyro

from contextcaps.cli.command import Command, CommandConsole, Flag
from contextcaps.documents import Column, Section, Table, count, facts_table, percent
from contextcaps.links import docs_page
from contextcaps.suggestions import there_is_no

if TYPE_CHECKING:
    from contextcaps.models import CapsuleNetwork
    from contextcaps.models.shipped import Measured

__all__ = ["Models"]


@dataclasses.dataclass(frozen=True)
class Models(Command):
    """List shipped models and presets, or show one or all of them step by step."""

    name: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[NAME]")] = None
    """The shipped model or the preset to show; without it, and without --all, they are listed."""
    classes: int = 150
    """Number of classes to build a preset for."""
    image_size: int = 64
    """Side of the images in pixels."""
    backbone: str = "auto"
    """paper, small, lite0 to lite2, timm:NAME, or auto (paper up to 32 px, small beyond)."""
    all: Flag = False
    """Build and show every preset."""
    no_forward: Flag = False
    """Show the steps only."""

    def run(self) -> None:
        from contextcaps.models import create_model, describe_model, list_models
        from contextcaps.models.loading import shipped_folder, shipped_names

        if self.all and self.name is not None:
            raise ValueError(f"--all and {self.name}: expected one of them")
        console = CommandConsole()
        if self.name is None and not self.all:
            _list_all(console)
            return
        if self.name is not None and shipped_folder(self.name) is not None:
            self._require_defaults()
            _show_shipped(self.name, console)
            return
        known = [*shipped_names(), *list_models()]
        if self.name is not None and self.name not in known:
            raise ValueError(f"model: {there_is_no(self.name, known)}")
        for each in list_models() if self.name is None else [self.name]:
            network = create_model(each, self.classes, self.image_size, self.backbone)
            _steps_table(network, f"{each}: {describe_model(each)}").print(console)
            if not self.no_forward:
                console.print(_forward_pass(network))
            console.print()
        if self.all:
            console.print(
                "Literal presets start with scores near 0 where there are many classes, as the paper's text has it."
            )
            console.print(f"Why, and what the others do about it: {docs_page('decisions/loss-and-collapse')}")

    def _require_defaults(self) -> None:
        """Refuse flags that say how to build a preset."""
        given = [
            f"--{field.name.replace('_', '-')}"
            for field in dataclasses.fields(self)
            if field.name in ("classes", "image_size", "backbone") and getattr(self, field.name) != field.default
        ]
        if given:
            raise ValueError(f"{', '.join(given)}: {self.name} is trained, and as it is; leave it out")


def _list_all(console: CommandConsole) -> None:
    """Print a table of the shipped models, and one of the presets."""
    from contextcaps.models import describe_model, list_models
    from contextcaps.models.shipped import list_shipped

    what, shipped = Column("what it is", align="left", wrap=True), list_shipped()
    columns = (
        Column("model", align="left"),
        Column("MB", lambda size: f"{size / 1e6:.0f}"),
        Column("classes", count),
        Column("image size", align="left"),
        Column("mAP", align="left"),
        Column("measured on", align="left", wrap=True),
    )
    rows = [
        (each.name, each.size, each.config.num_classes, each.config.image_size_text, *_figure(each.measured))
        for each in shipped
    ]
    if rows:
        Table("Shipped models", columns, rows).print(console)
        console.print(f"contextcaps tag photo.jpg takes {shipped[0].name}; --model takes another.\n")
    else:
        console.print("This copy of contextcaps was installed without a shipped model.\n")
    presets = [(each, describe_model(each)) for each in list_models()]
    Table("Presets, to train", (Column("preset", align="left"), what), presets).print(console)
    console.print("contextcaps models NAME shows one step by step.")


def _show_shipped(name: str, console: CommandConsole) -> None:
    """Print the steps, where PyTorch is there to build them, the classes and the figures of a shipped model."""
    from contextcaps.models.shipped import list_shipped

    shipped = next(each for each in list_shipped() if each.name == name)
    config = shipped.config
    if importlib.util.find_spec("torch") is not None:
        from contextcaps.models import CapsuleNetwork

        network = CapsuleNetwork.from_pretrained(shipped.folder)
        _steps_table(network, f"{name}: {config.model}, trained").print(console)
    facts = {
        "file": f"{shipped.size / 1e6:.1f} MB",
        "classes": f"{config.num_classes}: {', '.join(config.class_names or ())}",
        "image size": f"{config.image_size_text}; photographs are squashed to it",
        "test mAP": _sentence(shipped.test),
        "held-out mAP": _sentence(shipped.held_out),
        "licence of the weights": shipped.licence,
        "card": shipped.folder / "README.md",
    }
    facts_table({name: fact for name, fact in facts.items() if fact is not None}, f"Model {name}").print(console)


def _figure(measured: "Measured | None") -> tuple[str | None, str | None]:
    """Return a mAP with its interval as text, and what it was measured on."""
    if measured is None:
        return None, None
    around = "" if measured.interval is None else f" [{', '.join(percent(end) for end in measured.interval)}]"
    return f"{percent(measured.mAP)} %{around}", measured.data


def _sentence(measured: "Measured | None") -> str | None:
    figure, data = _figure(measured)
    return None if figure is None else f"{figure} on {data}"


def _steps_table(network: "CapsuleNetwork", title: str) -> Table:
    """List a network's steps with their shapes and weights."""
    columns = (
        Column("step", align="left"),
        Column("gives, for one image", lambda shape: " × ".join(map(str, shape)), align="left"),
        Column("weights", count),
    )
    rows = [(step.name, step.shape, step.weights or None) for step in network.steps()]
    weights = sum(parameter.numel() for parameter in network.parameters())
    return Table(title, columns, [*rows, Section(), ("in all", "", weights)])


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
