"""Triton kernels: the correlation module's weights, a cumulative product from the right, forward and backward.

w_k = τ_k · Π_{m>k} ρ_m with ρ = α/√(1+α²), τ = 1/√(1+α²), as sums of logarithms and counts of signs, in float32.
`correlation_weights` writes some twenty tensors of this size. What is given is [B, K-1, J], classes innermost as in the
votes; a program takes an image and a block of classes, and goes through the capsules, `RUN` at a time. With `UNIFORM`
it is deviations δ from uniform weights, α_k = √(k-1) · (1 + δ_k), rather than alpha.
"""

import triton
import triton.language as tl

__all__ = ["weights_backward_kernel", "weights_kernel"]

LEAST = tl.constexpr(3.2927225e-10)  # the fourth root of the least normal float32, as in `correlation_weights`


@triton.jit
def _log1p(x):
    """log(1 + x) for x from 0 to 1, without loss where x is small: x · log(y)/(y - 1), y = 1 + x as it was rounded."""
    y = 1.0 + x
    off = y - 1.0
    return tl.where(off == 0.0, x, tl.log(y) * (x / tl.where(off == 0.0, 1.0, off)))


@triton.jit
def _load_alpha(given_ptr, b, m, j, K, J, inside, UNIFORM: tl.constexpr):
    given = tl.load(given_ptr + (b * (K - 1) + m[:, None]) * J + j[None, :], mask=inside, other=1.0).to(tl.float32)
    return tl.sqrt((m + 1).to(tl.float32))[:, None] * (1.0 + given) if UNIFORM else given


@triton.jit
def _add(a, b):
    return a + b


@triton.jit
def weights_kernel(
    given_ptr, out_ptr, K, J, BLOCK: tl.constexpr, RUN: tl.constexpr, UNIFORM: tl.constexpr
):  # fmt: skip
    """out[b, k, j] of given[b, k - 1, j]. From the last capsule to the first, with the product so far."""
    b = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    kind = out_ptr.dtype.element_ty
    log_so_far = tl.zeros((BLOCK,), tl.float32)
    flips_so_far = tl.zeros((BLOCK,), tl.int32)
    runs = (K - 1 + RUN - 1) // RUN
    for n in range(runs):
        m = (runs - 1 - n) * RUN + tl.arange(0, RUN)  # α_m belongs to capsule m + 1
        inside = (m < K - 1)[:, None] & (j < J)[None, :]
        alpha = _load_alpha(given_ptr, b, m, j, K, J, inside, UNIFORM)
        flip = tl.where(inside & (alpha <= -LEAST), 1, 0)
        size = tl.maximum(tl.abs(alpha), LEAST)
        # log ρ and log τ, each from the side where it does not lose digits.
        small, large = tl.minimum(size, 1.0), tl.maximum(size, 1.0)
        half = -0.5 * _log1p(tl.where(size <= 1.0, small * small, 1.0 / (large * large)))
        log_rho = tl.where(inside, half + tl.log(small), 0.0)
        log_tau = half - tl.log(large)
        logs = tl.associative_scan(log_rho, 0, _add, reverse=True) - log_rho + log_so_far[None, :]
        flips = tl.associative_scan(flip, 0, _add, reverse=True) - flip + flips_so_far[None, :]
        weights = tl.where(flips % 2 == 1, -1.0, 1.0) * tl.exp(log_tau + logs)
        tl.store(out_ptr + (b * K + m[:, None] + 1) * J + j[None, :], weights.to(kind), mask=inside)
        log_so_far += tl.sum(log_rho, axis=0)
        flips_so_far += tl.sum(flip, axis=0)
    first = tl.where(flips_so_far % 2 == 1, -1.0, 1.0) * tl.exp(log_so_far)
    tl.store(out_ptr + b * K * J + j, first.to(kind), mask=j < J)


@triton.jit
def weights_backward_kernel(
    given_ptr, w_ptr, dw_ptr, out_ptr, K, J, BLOCK: tl.constexpr, RUN: tl.constexpr, UNIFORM: tl.constexpr
):  # fmt: skip
    """The gradient of given[b, m, j] for dw[b, k, j], from the first capsule to the last.

    log ρ_m is part of log w of capsules 0 … m, and log τ_m of that of capsule m + 1.
    """
    b = tl.program_id(0).to(tl.int64)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    start = b * K * J + j
    so_far = tl.load(w_ptr + start, mask=j < J, other=0.0).to(tl.float32)
    so_far *= tl.load(dw_ptr + start, mask=j < J, other=0.0).to(tl.float32)
    for n in range((K - 1 + RUN - 1) // RUN):
        m = n * RUN + tl.arange(0, RUN)
        inside = (m < K - 1)[:, None] & (j < J)[None, :]
        alpha = _load_alpha(given_ptr, b, m, j, K, J, inside, UNIFORM)
        place = (b * K + m[:, None] + 1) * J + j[None, :]
        own = tl.load(w_ptr + place, mask=inside, other=0.0).to(tl.float32)
        own *= tl.load(dw_ptr + place, mask=inside, other=0.0).to(tl.float32)  # the gradient of log w
        before = tl.associative_scan(own, 0, _add) - own + so_far[None, :]
        so_far += tl.sum(own, axis=0)
        # d log ρ/dα = 1/(α(1+α²)), d log τ/dα = -α/(1+α²), each written so that α² does not overflow.
        size = tl.maximum(tl.abs(alpha), LEAST)
        signed = tl.where(alpha <= -LEAST, -size, size)
        inverse = 1.0 / signed
        small = size <= 1.0
        shrunk = 1.0 / (1.0 + tl.where(small, size * size, inverse * inverse))
        by_rho = inverse * tl.where(small, shrunk, inverse * inverse * shrunk)
        by_tau = tl.where(small, signed, inverse) * shrunk
        found = before * by_rho - own * by_tau
        if UNIFORM:
            found *= tl.sqrt((m + 1).to(tl.float32))[:, None]
        kind = out_ptr.dtype.element_ty
        tl.store(out_ptr + (b * (K - 1) + m[:, None]) * J + j[None, :], found.to(kind), mask=inside)
