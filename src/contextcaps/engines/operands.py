"""Operands of every engine: the tensors that votes are computed from, never the votes themselves."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from contextcaps.capsules import CorrelationModule, MeanFieldCRF
from contextcaps.capsules.guards import require_tensor

__all__ = [
    "Engine",
    "Factors",
    "VoteOperands",
    "empty_like",
    "given_tensors",
    "is_plain_call",
    "needed_gradients",
    "split_settings",
]


class VoteOperands(NamedTuple):
    """The tensors that votes [B, K, J, I], after the CRF, are computed from."""

    capsules: Tensor
    """[B, K, A]."""
    weight: Tensor
    """[K, A, J, I], or [D, A, J, I] shared by the K/D positions of a type."""
    crf: MeanFieldCRF | None
    """What corrects the votes; None for none."""
    dtype: torch.dtype
    """Precision to compute in."""

    @property
    def potentials(self) -> tuple[Tensor | None, Tensor | None]:
        """The CRF's pairwise matrix and None, or its two factors; None twice without a CRF."""
        given = () if self.crf is None else self.crf.potentials
        return (given[0] if given else None, given[1] if len(given) > 1 else None)

    @property
    def crf_iterations(self) -> int:
        return 0 if self.crf is None else self.crf.iterations

    def require_weights(self, name: str, weights: Tensor | None, per_class: bool = False) -> None:
        """Refuse weights of the votes that are not [B, K, J] or, unless `per_class`, [B, K]; None is fine."""
        if weights is None:
            return
        batch, count, _ = self.capsules.shape
        legend = "B K" if weights.ndim == 2 and not per_class else "B K J"
        require_tensor(name, weights, legend, B=batch, K=count, J=self.weight.shape[2])

    def require_routing(
        self, gain: Tensor, bias: Tensor | None, factors: Tensor | None, couplings: Tensor | None
    ) -> None:
        """Refuse what `Engine.route` does not take."""
        if gain.requires_grad:
            raise ValueError("gain: expected a number without a gradient; the plain engine gives it one")
        if bias is not None:
            require_tensor("bias", bias, "J I", J=self.weight.shape[2], I=self.weight.shape[3])
        self.require_weights("factors", factors)
        self.require_weights("couplings", couplings)


class Factors(NamedTuple):
    """The factors of a vote's weight in the routing besides its coupling; or their gradients."""

    votes: Tensor | None
    """[B, K] or [B, K, J]: what votes are multiplied with before they are compared and summed."""
    couplings: Tensor | None
    """[B, K] or [B, K, J]: initial routing weights."""

    def each(self, function: Callable[[Tensor], Tensor]) -> "Factors":
        """Return a function of each factor that is given."""
        return Factors(*(None if given is None else function(given) for given in self))

    def of_images(self, images: slice) -> "Factors":
        """Return views for some of the images."""
        return self.each(lambda given: given[images])


class Engine(Protocol):
    """A module that computes a head without all its votes as a tensor; each function with all its gradients."""

    def route(
        self,
        votes: VoteOperands,
        iterations: int,
        gain: Tensor,
        bias: Tensor | None = None,
        factors: Tensor | None = None,
        couplings: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return decisions and sums [B, J, I] of `dynamic_routing` with a softmax over classes.

        Args:
            votes: where the votes come from.
            iterations: how often couplings are computed.
            gain: a single number, without a gradient.
            bias: [J, I].
            factors: [B, K] or [B, K, J], what votes are multiplied with before they are compared and summed.
            couplings: [B, K] or [B, K, J], initial routing weights.
        """

    def weighted_sum(self, votes: VoteOperands, weights: Tensor) -> Tensor:
        """Return Σ_k weights_kj · vote_kj, [B, J, I], with weights [B, K, J]."""

    def correlation_weights(self, module: CorrelationModule, feature_map: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the correlation module's weights for a map [B, H, W], as [B, K, J]."""


def is_plain_call(tensor: Tensor) -> bool:
    """Return whether an operator of this tensor may be called as the function that it is.

    So it is where nobody records or rewrites the call: no autograd, compiler, tracer, vmap or dispatch mode. The
    dispatcher of custom operators takes the CPU longer than the kernels of a small head take a GPU.
    """
    if type(tensor) not in (Tensor, Parameter) or torch.is_grad_enabled():
        return False
    recorded = torch.compiler.is_compiling() or torch._C._get_tracing_state() or is_in_torch_dispatch_mode()
    return not (recorded or torch._C._are_functorch_transforms_active())


# An operator's results are tensors: for a gradient of what was not given, it returns one without elements.


def given_tensors(*tensors: Tensor | None) -> tuple[Tensor, ...]:
    """Return those that there are."""
    return tuple(each for each in tensors if each is not None)


def empty_like(tensor: Tensor | None, other: Tensor) -> Tensor:
    """Return a contiguous tensor of the first one's shape; without elements, and like the other, if there is none."""
    if tensor is None:
        return other.new_empty(0)
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


def split_settings(inputs: tuple[Any, ...]) -> tuple[list[Tensor | None], list[Any]]:
    """Split an operator's inputs into its tensors, given or not, and the settings after them."""
    first = next(index for index, each in enumerate(inputs) if not (each is None or isinstance(each, Tensor)))
    return list(inputs[:first]), list(inputs[first:])


def needed_gradients(ctx: Any, gradients: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    """Return the gradients of an operator's first inputs, and None for those that need none and for all others."""
    needed = [each if need else None for each, need in zip(gradients, ctx.needs_input_grad, strict=False)]
    return *needed, *[None] * (len(ctx.needs_input_grad) - len(needed))
