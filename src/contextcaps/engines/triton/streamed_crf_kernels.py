"""Triton kernels: the softmax of a CRF whose matrix products are PyTorch's, and its gradient; a row a program.

Rows have JP ≥ J columns. What is written has zeros beyond J, whatever was read there.
"""

import triton
import triton.language as tl

__all__ = ["send_kernel", "softmax_vjp_kernel"]

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _softmax(l_ptr, j, J):
    logits = tl.load(l_ptr + j, mask=j < J, other=-float("inf")).to(tl.float32) * LOG2E
    e = tl.exp2(logits - tl.max(logits, axis=0))
    return e * (1.0 / tl.sum(e, axis=0))


@triton.jit
def send_kernel(l_ptr, out_ptr, J, JP, scale, offset, WIDTH: tl.constexpr):
    """out[row, :] = scale · (offset - softmax(l[row, :]))."""
    row, j = tl.program_id(0).to(tl.int64) * JP, tl.arange(0, WIDTH)
    sent = tl.where(j < J, scale * (offset - _softmax(l_ptr + row, j, J)), 0.0)
    tl.store(out_ptr + row + j, sent.to(out_ptr.dtype.element_ty), mask=j < JP)


@triton.jit
def softmax_vjp_kernel(l_ptr, h_ptr, out_ptr, J, JP, scale, WIDTH: tl.constexpr):
    """out[row, :] = q · (h - Σ q · h) · -scale, q = softmax(l[row, :]); may take the place of h."""
    row, j = tl.program_id(0).to(tl.int64) * JP, tl.arange(0, WIDTH)
    q = _softmax(l_ptr + row, j, J)
    h = tl.load(h_ptr + row + j, mask=j < J, other=0.0).to(tl.float32)
    found = q * (h - tl.sum(q * h, axis=0)) * -scale
    tl.store(out_ptr + row + j, found.to(out_ptr.dtype.element_ty), mask=j < JP)
