"""Triton kernels: votes of one capsule and attribute, for a tile of images, through the CRF and back, on chip.

A tile is a matrix [rows, J], one row per image (with shared vote weights: per image and position). The classes are
split into two parts J1 + J2 ≥ J, powers of two as Triton wants them, since a single one would waste up to half of the
work. Matrix products run on the tensor cores and accumulate in float32, in which the softmax and its gradient are
computed too.

Where J1 + J2 > J, the columns beyond J are kept out of every softmax by one more attribute, after the A of the capsule:
it is 1 in every row, and its weight is 0 for classes and `BESIDES` for the columns beyond. So no element of a tile is
ever compared with J.
"""

import triton
import triton.language as tl

__all__ = ["backward_kernel", "forward_kernel", "split_classes"]

BESIDES = tl.constexpr(-30000.0)
LOG2E = tl.constexpr(1.4426950408889634)


def split_classes(classes: int) -> tuple[int, int]:
    """J1 and J2 for J classes: the largest power of two below J, and what is left, rounded up; 16 at least."""
    first = 16
    while first * 2 < classes:
        first *= 2
    second = 16
    while first + second < classes:
        second *= 2
    return first, second


@triton.jit
def _load_capsules(x_ptr, group, rows, inside, R, A: tl.constexpr, AP: tl.constexpr):
    """[rows, AP]: the capsules' attributes, then a 1, then zeros."""
    a = tl.arange(0, AP)
    x = tl.load(x_ptr + (group * R + rows[:, None]) * A + a[None, :], mask=inside & (a < A)[None, :], other=0.0)
    return tl.where((a == A)[None, :], 1.0, x).to(x.dtype)


@triton.jit
def _load_weight(base, j, J, A: tl.constexpr, AP: tl.constexpr, JP: tl.constexpr):
    """[AP, j]: the vote weights of one capsule (or type) and attribute, then what keeps columns beyond J out."""
    a = tl.arange(0, AP)
    w = tl.load(base + a[:, None] * JP + j[None, :], mask=(a < A)[:, None], other=0.0)
    return tl.where((a == A)[:, None] & (j >= J)[None, :], BESIDES, w).to(w.dtype)


@triton.jit
def _load_pairwise(p_ptr, j1, j2, JP: tl.constexpr):
    """The pairwise matrix in four parts: from the first or second classes to the first or second."""
    p11 = tl.load(p_ptr + j1[:, None] * JP + j1[None, :])
    p12 = tl.load(p_ptr + j1[:, None] * JP + j2[None, :])
    p21 = tl.load(p_ptr + j2[:, None] * JP + j1[None, :])
    p22 = tl.load(p_ptr + j2[:, None] * JP + j2[None, :])
    return p11, p12, p21, p22


@triton.jit
def _exponentials(l1, l2):
    """exp(l - max l) in two parts, and one over their sum."""
    m = tl.maximum(tl.max(l1, axis=1), tl.max(l2, axis=1)) * LOG2E
    e1 = tl.exp2(l1 * LOG2E - m[:, None])
    e2 = tl.exp2(l2 * LOG2E - m[:, None])
    return e1, e2, 1.0 / (tl.sum(e1, axis=1) + tl.sum(e2, axis=1))


@triton.jit
def _add_messages(l1, l2, s1, s2, p11, p12, p21, p22, PRECISION: tl.constexpr):
    l1 = tl.dot(s1, p11, l1, input_precision=PRECISION)
    l1 = tl.dot(s2, p21, l1, input_precision=PRECISION)
    l2 = tl.dot(s1, p12, l2, input_precision=PRECISION)
    l2 = tl.dot(s2, p22, l2, input_precision=PRECISION)
    return l1, l2


@triton.jit
def forward_kernel(
    x_ptr, w_ptr, p_ptr, u_ptr, R, J, scale, offset,
    A: tl.constexpr, AP: tl.constexpr, I: tl.constexpr, TILE: tl.constexpr, J1: tl.constexpr, J2: tl.constexpr,
    ITERATIONS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """u[g, i, r, :] = the CRF's logits of votes x[g, r, :] · w[g, i, :, :], r = 0 … R-1."""
    group, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    rows = tile * TILE + tl.arange(0, TILE)
    inside = (rows < R)[:, None]
    JP: tl.constexpr = J1 + J2
    j1, j2 = tl.arange(0, J1), J1 + tl.arange(0, J2)
    x = _load_capsules(x_ptr, group, rows, inside, R, A, AP)
    if ITERATIONS > 0:
        p11, p12, p21, p22 = _load_pairwise(p_ptr, j1, j2, JP)
    for i in range(I):
        base = w_ptr + (group * I + i) * A * JP
        w1 = _load_weight(base, j1, J, A, AP, JP)
        w2 = _load_weight(base, j2, J, A, AP, JP)
        l1 = tl.dot(x, w1, input_precision=PRECISION)
        l2 = tl.dot(x, w2, input_precision=PRECISION)
        for _ in tl.static_range(ITERATIONS):
            e1, e2, z = _exponentials(l1, l2)
            z = (z * -scale)[:, None]
            s1 = (e1 * z + scale * offset).to(x.dtype)  # minus what is sent
            s2 = (e2 * z + scale * offset).to(x.dtype)
            l1 = tl.dot(x, w1, input_precision=PRECISION)
            l2 = tl.dot(x, w2, input_precision=PRECISION)
            l1, l2 = _add_messages(l1, l2, s1, s2, p11, p12, p21, p22, PRECISION)
        out = u_ptr + ((group * I + i) * R + rows[:, None]) * JP
        tl.store(out + j1[None, :], l1.to(u_ptr.dtype.element_ty), mask=inside)
        tl.store(out + j2[None, :], l2.to(u_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _messages_vjp(d1, d2, p11, p12, p21, p22, PRECISION: tl.constexpr):
    """The gradient of what was sent, over -scale."""
    g1 = tl.dot(d1, tl.trans(p11), input_precision=PRECISION)
    g1 = tl.dot(d2, tl.trans(p12), g1, input_precision=PRECISION)
    g2 = tl.dot(d1, tl.trans(p21), input_precision=PRECISION)
    g2 = tl.dot(d2, tl.trans(p22), g2, input_precision=PRECISION)
    return g1, g2


@triton.jit
def _softmax_vjp(q1, q2, g1, g2):
    """The gradient of the logits of marginals q, where g is the marginals'."""
    inner = (tl.sum(q1 * g1, axis=1) + tl.sum(q2 * g2, axis=1))[:, None]
    return q1 * (g1 - inner), q2 * (g2 - inner)


@triton.jit
def _load_tile(desc, matrix, row, column, TILE: tl.constexpr, N: tl.constexpr):
    return desc.load([matrix, row, column]).reshape(TILE, N)


@triton.jit(do_not_specialize=["first", "start"])
def backward_kernel(
    x_ptr, w_ptr, p_ptr, du1, du2, kept1, kept2, dx_ptr, dw_ptr, first, R, start, stop, J, scale, offset,
    A: tl.constexpr, AP: tl.constexpr, I: tl.constexpr, TILE: tl.constexpr, J1: tl.constexpr, J2: tl.constexpr,
    ITERATIONS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Back through the CRF, to dx[g, i, r, :] and, for each tile of rows, dw[tile, own, i, :, :].

    For groups from `first` on and rows `start` … `stop` - 1. `du1` and `du2` describe du[(g, i), r, :], a tile and the
    first or second classes at a time; a tile's rows from `stop` on have zeros for capsules, and nothing of them is
    kept. What the gradient of the pairwise weights needs is kept in
    kept[(n, own, i), r, :], described likewise: for n = 0 minus what was sent in the first iteration; with two
    iterations, for n = 1 in the second, and for n = 2 the gradient of the logits between the two.

    Registers are what is short here: so tiles are described rather than pointed to, and what is needed again is
    computed or loaded again.
    """
    own, i, tile = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    count = tl.num_programs(0)
    group = own + first
    JP: tl.constexpr = J1 + J2
    a = tl.arange(0, AP)
    j1, j2 = tl.arange(0, J1), J1 + tl.arange(0, J2)
    given, place = group * I + i, own * I + i
    row = tile * TILE
    rows = start + row + tl.arange(0, TILE)
    inside = (rows < stop)[:, None]
    x = _load_capsules(x_ptr, group.to(tl.int64), rows, inside, R, A, AP)
    base = w_ptr + given.to(tl.int64) * A * JP
    w1 = _load_weight(base, j1, J, A, AP, JP)
    w2 = _load_weight(base, j2, J, A, AP, JP)
    d1, d2 = _load_tile(du1, given, start + row, 0, TILE, J1), _load_tile(du2, given, start + row, J1, TILE, J2)
    if ITERATIONS == 0:
        dv1, dv2 = d1, d2
    else:
        p11, p12, p21, p22 = _load_pairwise(p_ptr, j1, j2, JP)
        l1 = tl.dot(x, w1, input_precision=PRECISION)
        l2 = tl.dot(x, w2, input_precision=PRECISION)
        e1, e2, z = _exponentials(l1, l2)
        if ITERATIONS == 1:
            z = z[:, None]
            e1, e2 = e1 * z, e2 * z  # the only marginals
            kept1.store([place, row, 0], (scale * offset - e1 * scale).to(x.dtype)[None, :, :])
            kept2.store([place, row, J1], (scale * offset - e2 * scale).to(x.dtype)[None, :, :])
        else:
            z = (z * scale)[:, None]
            s1 = (scale * offset - e1 * z).to(x.dtype)
            s2 = (scale * offset - e2 * z).to(x.dtype)
            kept1.store([place, row, 0], s1[None, :, :])
            kept2.store([place, row, J1], s2[None, :, :])
            l1, l2 = _add_messages(l1, l2, s1, s2, p11, p12, p21, p22, PRECISION)
            e1, e2, z = _exponentials(l1, l2)
            z = z[:, None]
            e1, e2 = e1 * z, e2 * z  # the second marginals
            place += count * I
            kept1.store([place, row, 0], (scale * offset - e1 * scale).to(x.dtype)[None, :, :])
            kept2.store([place, row, J1], (scale * offset - e2 * scale).to(x.dtype)[None, :, :])
            g1, g2 = _messages_vjp(d1, d2, p11, p12, p21, p22, PRECISION)
            g1, g2 = _softmax_vjp(e1, e2, g1, g2)
            d1, d2 = (g1 * -scale).to(x.dtype), (g2 * -scale).to(x.dtype)
            place += count * I
            kept1.store([place, row, 0], d1[None, :, :])
            kept2.store([place, row, J1], d2[None, :, :])
            tl.debug_barrier()
            l1 = tl.dot(x, w1, input_precision=PRECISION)
            l2 = tl.dot(x, w2, input_precision=PRECISION)
            e1, e2, z = _exponentials(l1, l2)
            z = z[:, None]
            e1, e2 = e1 * z, e2 * z  # the first marginals
        g1, g2 = _messages_vjp(d1, d2, p11, p12, p21, p22, PRECISION)
        g1, g2 = _softmax_vjp(e1, e2, g1, g2)
        g1, g2 = g1 * -scale, g2 * -scale
        if ITERATIONS == 2:
            g1 += d1.to(tl.float32)
            g2 += d2.to(tl.float32)
        tl.debug_barrier()
        g1 += _load_tile(du1, given, start + row, 0, TILE, J1).to(tl.float32)
        g2 += _load_tile(du2, given, start + row, J1, TILE, J2).to(tl.float32)
        dv1, dv2 = g1.to(x.dtype), g2.to(x.dtype)
    dw1 = tl.dot(tl.trans(x), dv1, input_precision=PRECISION)
    dw2 = tl.dot(tl.trans(x), dv2, input_precision=PRECISION)
    dx = tl.dot(dv1, tl.trans(w1), input_precision=PRECISION)
    dx = tl.dot(dv2, tl.trans(w2), dx, input_precision=PRECISION)
    found = dx_ptr + (given.to(tl.int64) * R + rows[:, None]) * A
    tl.store(found + a[None, :], dx, mask=inside & (a < A)[None, :])
    out = dw_ptr + ((tile * count + own).to(tl.int64) * I + i) * A * JP
    tl.store(out + a[:, None] * JP + j1[None, :], dw1, mask=(a < A)[:, None])
    tl.store(out + a[:, None] * JP + j2[None, :], dw2, mask=(a < A)[:, None])
