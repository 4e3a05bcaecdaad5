"""contextcaps evaluate."""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from contextcaps.cli.command import Command, CommandConsole, Flag, Folder, Number, Split, require_location
from contextcaps.data.problems import OnBad
from contextcaps.rank_zero import is_rank_zero

if TYPE_CHECKING:
    from contextcaps.training.evaluate import Elsewhere

__all__ = ["Evaluate"]


@dataclasses.dataclass(frozen=True)
class Evaluate(Command):
    """Measure a trained model: all metrics, beside those of the constant prior.

    Without --data, on the test part of what it was trained on, or validation.

    A shipped model needs --data.
    """

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_OR_MODEL")]
    """A run's folder, a model's folder, a shipped model such as coco80, or hf:OWNER/NAME on the Hugging Face Hub."""
    data: Annotated[str | None, tyro.conf.arg(metavar="SOURCE")] = None
    """Another source; all of it, unless it has a test or validation part of its own."""
    split: Split = None
    """The part to measure on: train, val or test of the run's data; one of the source's own splits; or all."""
    out: Folder = None
    """Where JSON, Markdown and plots go; by default into the run, or to ./evaluation for a model's folder."""
    batch_size: int = 64
    """Images per process to compute at once."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Precision of the computation; auto is fp32."""
    accelerator: Literal["auto", "cpu", "gpu"] = "auto"
    """Where to compute; auto takes a GPU if there is one."""
    devices: int = 1
    """Processes on each machine; every image is counted exactly once."""
    nodes: int = 1
    """Machines, as for train."""
    no_prepare: Flag = False
    """Decode the images as they are needed, without a prepared copy."""
    cache: Folder = None
    """Folder for prepared copies, instead of the run's or the user's cache."""
    on_bad: Annotated[OnBad | None, tyro.conf.arg(metavar="{stop,skip}")] = None
    """Stop at bad data, or skip it and report it; by default as in training."""
    resamples: Number = None
    """Resamples of the bootstrap; by default 1000, fewer for very much data."""
    seed: int = 0
    """Seed of the bootstrap, and of which labels are known."""
    known: Annotated[str | None, tyro.conf.arg(metavar="SHARE,…")] = None
    """Tell the model these shares of each image's labels, such as 0.25,0.5, and measure it on the others."""
    degrade: Annotated[str | None, tyro.conf.arg(metavar="KIND[:STRENGTH]")] = None
    """Measure on degraded images: small:32 (pixels), blur:0.02 (sigma as a share of the sides), occlude:0.5 (share of
    the image), surroundings:0.5 (the objects of one class covered, a share of the image at most, and only that class
    to find), or uncovered:0.5 (the same labels, nothing covered)."""
    engine: Literal["local", "ray"] = "local"
    """Compute in this process (or --devices), or on Ray with many, which decode the images as they are needed."""
    address: Annotated[str | None, tyro.conf.arg(metavar="HOST:PORT")] = None
    """With --engine ray: a cluster that runs already; without it one is started on this machine, for this command."""
    workers: Number = None
    """With --engine ray: processes that hold the model, by default one for each GPU, or for each core where there is
    none."""
    quiet: Flag = False
    """No progress, only the tables."""

    def run(self) -> None:
        from contextcaps.evaluation.known.measuring import parse_shares
        from contextcaps.evaluation.known.report import known_table
        from contextcaps.evaluation.report import evaluation_tables
        from contextcaps.training.evaluate import evaluate

        require_location(self.data)
        measured = evaluate(
            **self.keywords("no_prepare", "known", "quiet", "engine", "address", "workers"),
            elsewhere=self._on_ray(),
            prepare=False if self.no_prepare else None,
            known=() if self.known is None else parse_shares(self.known),
            progress=not self.quiet,
        )
        if not is_rank_zero():
            return
        console = CommandConsole()
        for table in evaluation_tables(measured.evaluation):
            table.print(console)
        if measured.known is not None:
            known_table(measured.known).print(console)
        if measured.files:
            written = f"Written to {measured.folder}: {', '.join(path.name for path in measured.files)}"
            console.print(written, soft_wrap=True, highlight=False)

    def _on_ray(self) -> "Elsewhere | None":
        """Return what computes on Ray; None for another engine."""
        if self.engine == "local":
            for name in ("address", "workers"):
                if getattr(self, name):
                    raise ValueError(f"--{name}: not with --engine local")
            return None
        for name, default in (("devices", 1), ("nodes", 1), ("known", None)):
            if getattr(self, name) != default:
                raise ValueError(f"--{name}: not with --engine ray")
        from contextcaps.corpus.predicting import OnRay

        return OnRay(self.address, self.workers)
