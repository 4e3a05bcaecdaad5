"""The CRF where it does not fit on chip: matrix products by PyTorch, the softmax and its gradient by Triton.

Votes are rows [n, JP], JP ≥ J: JP is a multiple of 16, and matrix products are faster where rows are aligned.
With q = softmax(l_t), minus what is sent is m = J · (1/J - q), and l_{t+1} = u + m · P, P without its diagonal.
Backward, with g the gradient of l_{t+1}:

    du += g,  dP += mᵀ · g,  dl_t = q · (h - Σ_j q_j · h_j),  h = -J · g · Pᵀ,

and l_0 = u. A row is read once for what is sent, and once, with g · Pᵀ, for the gradient.
"""

import torch
import triton
from torch import Tensor

from contextcaps.engines.pairwise import make_pairwise
from contextcaps.engines.triton import streamed_crf_kernels

__all__ = ["StreamedCRF"]


class StreamedCRF:
    """A centred CRF for rows of votes, a chunk of them at a time; the potentials' gradients add up in `pairwise`.

    Args:
        potentials: one pairwise matrix [J, J] or two factors [J, r], in the votes' precision.
        iterations: mean-field iterations.
        columns: JP.
    """

    def __init__(self, potentials: tuple[Tensor, ...], iterations: int, columns: int) -> None:
        self.iterations = iterations
        self.pairwise = make_pairwise(potentials, columns)
        classes = len(potentials[0])
        self.sizes = (classes, columns, float(classes))  # J, JP and the messages' scale
        width = triton.next_power_of_2(columns)
        self.launch = {"WIDTH": width, "num_warps": max(1, min(16, width // 1024))}

    def _send(self, logits: Tensor) -> Tensor:
        sent = torch.empty_like(logits)
        kernel = streamed_crf_kernels.send_kernel[(len(logits),)]
        kernel(logits, sent, *self.sizes, 1 / self.sizes[0], **self.launch)
        return sent

    def correct(self, rows: Tensor, out: Tensor | None = None) -> Tensor:
        """Return rows [n, JP], contiguous, after the CRF; in `out` if that is given and there are iterations."""
        logits = rows
        for turn in range(self.iterations):
            last = turn + 1 == self.iterations
            logits = self.pairwise.add_messages(rows, self._send(logits), out if last else None)
        return logits

    def vjp(self, rows: Tensor, gradient: Tensor) -> Tensor:
        """Return the gradient [n, JP] of rows before the CRF, for that after it; add to the potentials' gradients."""
        passed = [rows]
        for _ in range(self.iterations - 1):
            passed.append(self.pairwise.add_messages(rows, self._send(passed[-1])))
        reached, before = gradient, None
        for logits in reversed(passed[: self.iterations]):
            self.pairwise.add_gradient(self._send(logits), reached)
            before = reached if before is None else before + reached
            found = self.pairwise.vjp(reached)
            kernel = streamed_crf_kernels.softmax_vjp_kernel[(len(rows),)]
            kernel(logits, found, found, *self.sizes, **self.launch)
            reached = found
        return reached if before is None else before + reached
