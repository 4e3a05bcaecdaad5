"""Choose the engine that computes a head: all votes in memory, a few at a time, or by Triton kernels."""

from typing import Literal, cast

import torch
from torch import Tensor

from contextcaps.capsules import DynamicRouting, EMRouting, MeanFieldCRF
from contextcaps.engines.operands import Engine
from contextcaps.engines.triton.available import why_not_triton

__all__ = [
    "EngineName",
    "EngineUnavailableError",
    "RequestedEngine",
    "choose_engine",
    "computing_dtype",
    "load_engine",
    "require_engine",
]

EngineName = Literal["plain", "lean", "triton"]
RequestedEngine = Literal["auto", "plain", "lean", "triton"]

_LEAN_FROM = 1 << 22  # votes; below, they fit into a cache and need no tiles
_LEAN_ON_GPU_FROM = 1 << 30  # votes of 4 GiB in float32: there, memory matters more than time
_LEAN_FOR_TRITON_FROM = 1 << 26  # votes of a tile on a GPU: where kernels would do, but for the CRF
_TRITON_FROM = 1 << 20  # votes; below, starting the kernels takes longer than their work


class EngineUnavailableError(ValueError):
    """An engine was requested by name and cannot compute a head, for a `reason`."""

    def __init__(self, requested: RequestedEngine, expected: str, reason: str) -> None:
        super().__init__(f"engine: expected {expected}, got {requested!r}: {reason}")
        self.reason = reason


def require_engine(
    requested: RequestedEngine, weight: Tensor, crf: MeanFieldCRF | None, routing: DynamicRouting | EMRouting | None
) -> None:
    """Refuse an engine requested by name that cannot compute a head, on whatever device; as in `choose_engine`.

    Raises:
        EngineUnavailableError: what the engine is, and what of the head it does not know.
    """
    if requested in ("auto", "plain"):
        return
    if (reason := _why_plain(weight, crf, routing)) is not None:
        raise EngineUnavailableError(requested, "'auto' or 'plain'", reason)
    if requested == "triton" and (reason := _why_not_crf(crf)) is not None:
        raise EngineUnavailableError(requested, "'auto', 'lean' or 'plain'", reason)


def choose_engine(
    requested: RequestedEngine,
    capsules: Tensor,
    weight: Tensor,
    crf: MeanFieldCRF | None,
    routing: DynamicRouting | EMRouting | None,
) -> EngineName:
    """Return the engine for capsules [B, K, A], vote weights [K or D, A, J, I], a CRF and a routing (None for CORR).

    "auto" takes the Triton kernels for half precision on a GPU, tiles where there are many votes, and all votes in
    memory otherwise. What is exported takes all votes in memory too, and runs wherever PyTorch's own operators do.

    Raises:
        EngineUnavailableError: an engine was requested that cannot compute this head here.
    """
    require_engine(requested, weight, crf, routing)
    if requested in ("plain", "lean"):
        return requested
    dtype = computing_dtype(capsules)
    why_not = why_not_triton(capsules.device, dtype)
    if requested == "triton":
        if why_not is not None:
            raise EngineUnavailableError(requested, "'auto', 'lean' or 'plain'", why_not)
        return "triton"
    if torch.compiler.is_exporting() or _why_plain(weight, crf, routing) is not None:
        return "plain"
    votes = capsules.shape[0] * capsules.shape[1] * weight.shape[2] * weight.shape[3]
    lean_from = _LEAN_FROM if capsules.device.type == "cpu" else _LEAN_ON_GPU_FROM
    if capsules.is_cuda and dtype != torch.float32 and votes >= _TRITON_FROM and why_not is None:
        if _why_not_crf(crf) is None:
            return "triton"
        lean_from = _LEAN_FOR_TRITON_FROM
    return "lean" if votes >= lean_from else "plain"


def _why_plain(weight: Tensor, crf: MeanFieldCRF | None, routing: DynamicRouting | EMRouting | None) -> str | None:
    """Return what of a head needs all votes in memory; None if nothing does."""
    if isinstance(routing, EMRouting):
        return "EM routing needs all votes at once"
    if routing is not None and routing.normalize == "capsules":
        return "a softmax over capsules needs all votes at once"
    if crf is not None and crf.weight is not None and crf.weight.ndim == 4:
        return "the CRF has a pairwise matrix for each capsule"
    # A DTensor, whose class takes half a second to import; it is put together for `Votes.forward` only.
    if hasattr(weight, "device_mesh"):
        return "the vote weights are shared among processes"
    return None


def _why_not_crf(crf: MeanFieldCRF | None) -> str | None:
    """Return what keeps the Triton kernels from computing a CRF; None if nothing does."""
    if crf is not None and (crf.literal or (crf.weight is not None and crf.weight.ndim == 3)):
        return "the kernels know a CRF with one pairwise matrix for all attributes, and not Algorithm 1 to the letter"
    return None


def computing_dtype(capsules: Tensor) -> torch.dtype:
    """Return what the votes will be computed in."""
    kind = capsules.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else capsules.dtype


def load_engine(name: Literal["lean", "triton"]) -> Engine:
    """Return the functions of an engine; Triton is an extra, and imported only here."""
    if name == "lean":
        from contextcaps.engines import lean

        return cast(Engine, lean)
    from contextcaps.engines.triton import operators

    return cast(Engine, operators)
