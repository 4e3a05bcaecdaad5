"""Losses and weights that became infinite or no numbers: when that is seen, and what the likely cause is."""

import math
import statistics
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from contextcaps.training.failures import Diverged
from contextcaps.training.processes import Fabric, agree, local_shard
from contextcaps.training.runs import Run

__all__ = ["DivergenceGuard", "diagnose_non_finite"]

_NORMS_KEPT = 20


class DivergenceGuard:
    """Collects losses and gradient norms without waiting for the device, and refuses those that are no numbers.

    Args:
        fabric: launched.
        network: what is trained.
        precision: of the computation: fp32, bf16 or fp16.
        learning_rate: the highest of the run.
        run: its last checkpoint is what is left when it diverges.
    """

    def __init__(self, fabric: Fabric, network: nn.Module, precision: str, learning_rate: float, run: Run) -> None:
        self.fabric, self.network, self.precision = fabric, network, precision
        self.learning_rate, self.run = learning_rate, run
        self._losses: list[Tensor] = []
        self._norms: list[Tensor] = []

    def add_loss(self, loss: Tensor) -> None:
        """Note the loss of a batch."""
        self._losses.append(loss.detach())

    def add_gradient_norm(self, norm: Tensor) -> None:
        """Note the norm of the gradients of a step."""
        self._norms = [*self._norms[1 - _NORMS_KEPT :], norm.detach()]

    def read_losses(self, step: int, epoch: int, accumulate: int) -> list[float]:
        """Return the losses since the last call, each the mean over processes; waits for the device.

        Args:
            step: steps of the optimiser so far.
            epoch: the epoch under way, from 0.
            accumulate: batches per step.

        Raises:
            Diverged: one of them is no number.
        """
        if not self._losses:
            return []
        stacked = torch.stack(self._losses).float()
        if self.fabric.world_size > 1:
            stacked = self.fabric.all_reduce(stacked, reduce_op="mean")  # type: ignore[assignment]
        self._losses = []
        losses = stacked.tolist()
        for number, loss in enumerate(losses, start=1):
            if not math.isfinite(loss):
                steps_ago = (len(losses) - number) // accumulate
                self._refuse(f"the loss is {loss}", loss, step - steps_ago, epoch)
        return losses

    def require_finite_weights(self, step: int, epoch: int) -> None:
        """Refuse weights that are no numbers in any process: they are neither validated nor saved."""
        weights = (parameter.detach() for parameter in self.network.parameters())
        broken = not all(bool(local_shard(weight).isfinite().all()) for weight in weights)
        if agree(self.fabric, broken)[0]:
            self._refuse("the weights are no numbers any more", math.nan, step, epoch)

    def _refuse(self, what: str, loss: float, step: int, epoch: int) -> None:
        cause = diagnose_non_finite(
            step=step,
            loss=loss,
            network=self.network,
            precision=self.precision,
            learning_rate=self.learning_rate,
            gradient_norms=[float(norm) for norm in self._norms],
        )
        last = self.run.checkpoints.last
        kept = f"the last good checkpoint is {last}" if last.exists() else "no checkpoint had been saved yet"
        raise Diverged(f"{what} at step {step} (epoch {epoch + 1}); {kept}. {cause}", self.run.folder)


def diagnose_non_finite(
    step: int,
    loss: Tensor | float,
    network: nn.Module,
    precision: str,
    learning_rate: float,
    gradient_norms: Sequence[float],
) -> str:
    """Return the likely cause of a loss that is NaN or infinite, and what to do, in one or two sentences.

    Images are bytes and targets are 0 or 1, so it cannot be the batch. And a run keeps its settings: to change them is
    to train anew.

    Args:
        step: at which it was seen.
        loss: the value.
        network: as it is now, before or after the update of that step.
        precision: of the computation: fp32, bf16 or fp16.
        learning_rate: the highest of the run, or that of the step.
        gradient_norms: of the steps before, the latest last; those that are not finite may be among them.
    """
    weights = (*network.named_parameters(), *network.named_buffers())
    broken = next((name for name, weight in weights if not weight.isfinite().all()), None)
    where = f"The network's {broken} is not finite, so an update up to step {step} broke it. " if broken else ""
    lower = f"train anew with a lower `--lr` than {learning_rate:g}"
    if precision == "fp16":
        return (
            f"{where}Half precision overflows above 65504: train anew with `--precision bf16`, or fp32 where there is "
            "none."
        )
    norms = [norm for norm in map(float, gradient_norms) if math.isfinite(norm)]
    usual = statistics.median(norms[:-1]) if len(norms) > 1 else math.inf
    grows = bool(norms) and norms[-1] > 10 * usual
    if grows or (len(norms) < len(gradient_norms) and not broken):
        grown = f"from a norm of {usual:.3g} to {norms[-1]:.3g}" if grows else "beyond all numbers"
        return f"{where}The gradients grew {grown}: {lower}, a longer `--warmup`, or a smaller `--clip`."
    if broken:
        return f"{where}The same would happen again: {lower}, or a smaller `--clip`."
    return (
        f"Weights and gradients before step {step} are in order, so the loss of {float(loss)} arose in the network "
        f"itself: {lower}, or with `--precision fp32`; if it comes back, report it with the run's config.yaml."
    )
