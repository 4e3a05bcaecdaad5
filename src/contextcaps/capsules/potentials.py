"""Pairwise potentials between classes: a matrix [J, J], or two factors [J, r] whose product left · rightᵀ it is."""

from torch import Tensor

from contextcaps.capsules.guards import require_same_dtype, require_tensor

__all__ = ["Pairwise", "require_pairwise"]

Pairwise = Tensor | tuple[Tensor, Tensor]


def require_pairwise(
    pairwise: Pairwise, classes: int, attributes: int | None = None, capsules: int | None = None, /, **operand: Tensor
) -> None:
    """Refuse potentials of another shape or of another dtype than the operand's.

    Args:
        pairwise: [J, J], or a pair of factors [J, r]; with `attributes`, one matrix per attribute [I, J, J] as well,
            and with `capsules`, too, one per capsule and attribute [K, I, J, J].
        classes: J.
        attributes: I.
        capsules: K.
        operand: what the potentials are multiplied with, by its name.
    """
    if isinstance(pairwise, tuple):
        if len(pairwise) != 2:
            raise ValueError(f"pairwise: expected two factors [J, r], got {len(pairwise)}")
        left, right = pairwise
        _, rank = require_tensor("pairwise[0]", left, "J r", J=classes)
        require_tensor("pairwise[1]", right, "J r", J=classes, r=rank)
        require_same_dtype(**operand, left=left, right=right)
        return
    if attributes is not None and isinstance(pairwise, Tensor) and pairwise.ndim == 3:
        require_tensor("pairwise", pairwise, "I J J", I=attributes, J=classes)
    elif attributes is not None and capsules is not None and isinstance(pairwise, Tensor) and pairwise.ndim == 4:
        require_tensor("pairwise", pairwise, "K I J J", K=capsules, I=attributes, J=classes)
    else:
        require_tensor("pairwise", pairwise, "J J", J=classes)
    require_same_dtype(**operand, pairwise=pairwise)
