"""Why a loss became infinite or no number, as far as it can be told from the network and its last gradients."""

import math
import statistics
from collections.abc import Sequence

from torch import Tensor, nn

__all__ = ["diagnose_non_finite"]


def diagnose_non_finite(
    step: int,
    loss: Tensor | float,
    network: nn.Module,
    precision: str,
    learning_rate: float,
    gradient_norms: Sequence[float],
) -> str:
    """The likely cause of a loss that is NaN or infinite, and what to do, in one or two sentences.

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
