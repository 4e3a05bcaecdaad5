"""Triton kernels: what routing does with votes that lie in memory once, in compact form; each is one pass over them.

Votes are [G, I, P, B, JP]: G groups of P capsules (types and positions; G = K and P = 1 where every capsule has vote
weights of its own), and JP = J1 + J2 ≥ J columns. A program takes one image and a range of capsules, and holds the
I × J votes of one capsule at a time; in the last pass, one attribute of several capsules.

Sabour's routing never needs its logits in memory: they are the agreement of a vote with the sum of all earlier
decisions, l_t = f · vote · S_t, S_t = v_1 + … + v_{t-1}. So an iteration is one pass: agreement, softmax over classes,
weighted sum. Its backward pass is one too, which computes the couplings anew and writes down what the votes' own
gradient is made of. That comes from a last pass, for all iterations at once, in the place of the votes.

With f the votes' factors and m the couplings' (the initial routing weights), vote weights are w_t = c_t · f · m,
c_t = softmax_j(l_t); in the first iteration c_1 = 1 with initial routing weights, 1/J without.
"""

import triton
import triton.language as tl

__all__ = [
    "agreement_kernel",
    "back_kernel",
    "decide_kernel",
    "last_kernel",
    "pass_kernel",
    "sum_kernel",
    "undecide_kernel",
]

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def _vote_base(k, b, B, P, I: tl.constexpr, JP: tl.constexpr, WIDE: tl.constexpr):
    """Where the votes of capsule k and image b begin, and how far apart its attributes are.

    `WIDE`: a group has so many votes that the latter times I takes 64 bits, and with them more registers.
    """
    group, position = k // P, k % P
    base = ((group.to(tl.int64) * I * P + position) * B + b) * JP
    if WIDE:
        return base, tl.cast(P, tl.int64) * B * JP
    else:
        return base, P * B * JP


@triton.jit
def _tile(ptr, i, j, apart, I: tl.constexpr, IP: tl.constexpr):
    """[IP, j] in float32, with I rows that lie `apart`."""
    place = ptr + i[:, None] * apart + j[None, :]
    if I == IP:
        return tl.load(place).to(tl.float32)
    else:
        return tl.load(place, mask=(i < I)[:, None], other=0.0).to(tl.float32)


@triton.jit
def _store_tile(ptr, i, j, apart, values, I: tl.constexpr, IP: tl.constexpr):
    place = ptr + i[:, None] * apart + j[None, :]
    if I == IP:
        tl.store(place, values.to(ptr.dtype.element_ty))
    else:
        tl.store(place, values.to(ptr.dtype.element_ty), mask=(i < I)[:, None])


@triton.jit
def _factor(ptr, b, k, j, K, J, KIND: tl.constexpr):
    """Factors [B, K] (KIND 1) or [B, K, J] (KIND 2) of capsule k, or 1."""
    if KIND == 2:
        return tl.load(ptr + (b * K + k) * J + j, mask=j < J, other=0.0).to(tl.float32)
    elif KIND == 1:
        return tl.load(ptr + b * K + k).to(tl.float32)
    else:
        return 1.0


@triton.jit
def _add_factor(ptr, b, k, j1, j2, K, J, v1, v2, KIND: tl.constexpr, ADD: tl.constexpr):
    """Write a gradient of factors, in two parts, or add to it; summed over classes where classes share them."""
    kind = ptr.dtype.element_ty
    if KIND == 2:
        place = ptr + (b * K + k) * J
        p1, p2 = place + j1, place + j2
        if ADD:
            v1 += tl.load(p1, mask=j1 < J, other=0.0).to(tl.float32)
            v2 += tl.load(p2, mask=j2 < J, other=0.0).to(tl.float32)
        tl.store(p1, v1.to(kind), mask=j1 < J)
        tl.store(p2, v2.to(kind), mask=j2 < J)
    elif KIND == 1:
        both = tl.sum(tl.where(j1 < J, v1, 0.0), axis=0) + tl.sum(tl.where(j2 < J, v2, 0.0), axis=0)
        place = ptr + b * K + k
        if ADD:
            both += tl.load(place).to(tl.float32)
        tl.store(place, both.to(kind))


@triton.jit
def _couplings(l1, l2, j1, j2, J):
    """Softmax over classes, in two parts."""
    l1 = tl.where(j1 < J, l1 * LOG2E, -float("inf"))
    l2 = tl.where(j2 < J, l2 * LOG2E, -float("inf"))
    most = tl.maximum(tl.max(l1, axis=0), tl.max(l2, axis=0))
    e1, e2 = tl.exp2(l1 - most), tl.exp2(l2 - most)
    z = 1.0 / (tl.sum(e1, axis=0) + tl.sum(e2, axis=0))
    return e1 * z, e2 * z


@triton.jit
def pass_kernel(
    u_ptr, f_ptr, m_ptr, state_ptr, out_ptr, B, K, P, J, share, even,
    I: tl.constexpr, IP: tl.constexpr, J1: tl.constexpr, J2: tl.constexpr,
    F: tl.constexpr, M: tl.constexpr, FIRST: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Σ_k w_kj · vote_kj with the couplings of `state`.

    Program (b, n) takes the n-th `share` of capsules and writes out[n, b, i, j], in float32.
    """
    b, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    JP: tl.constexpr = J1 + J2
    i, j1, j2 = tl.arange(0, IP), tl.arange(0, J1), J1 + tl.arange(0, J2)
    own = b * I * JP
    t1, t2 = tl.zeros((IP, J1), tl.float32), tl.zeros((IP, J2), tl.float32)
    for k in tl.range(part * share, tl.minimum(K, (part + 1) * share), num_stages=STAGES):
        base, apart = _vote_base(k, b, B, P, I, JP, WIDE)
        u1, u2 = _tile(u_ptr + base, i, j1, apart, I, IP), _tile(u_ptr + base, i, j2, apart, I, IP)
        f1, f2 = _factor(f_ptr, b, k, j1, K, J, F), _factor(f_ptr, b, k, j2, K, J, F)
        m1, m2 = _factor(m_ptr, b, k, j1, K, J, M), _factor(m_ptr, b, k, j2, K, J, M)
        if FIRST:
            w1 = tl.full((J1,), 1.0, tl.float32) * (even * f1 * m1)
            w2 = tl.full((J2,), 1.0, tl.float32) * (even * f2 * m2)
        else:
            g1 = tl.sum(u1 * _tile(state_ptr + own, i, j1, JP, I, IP), axis=0)
            g2 = tl.sum(u2 * _tile(state_ptr + own, i, j2, JP, I, IP), axis=0)
            c1, c2 = _couplings(f1 * g1, f2 * g2, j1, j2, J)
            w1, w2 = c1 * f1 * m1, c2 * f2 * m2
        t1 += w1[None, :] * u1
        t2 += w2[None, :] * u2
    out = out_ptr + part * B * I * JP + own
    _store_tile(out, i, j1, JP, t1, I, IP)
    _store_tile(out, i, j2, JP, t2, I, IP)


@triton.jit
def back_kernel(
    u_ptr, f_ptr, m_ptr, state_ptr, ds_ptr, out_ptr, w_ptr, dl_ptr, df_ptr, dm_ptr, B, K, P, J, share,
    I: tl.constexpr, IP: tl.constexpr, J1: tl.constexpr, J2: tl.constexpr,
    F: tl.constexpr, M: tl.constexpr, ADD: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Backward, but for the first iteration: Σ_k f · dl_kj · vote_kj, the state's gradient, in out[n, b, i, j].

    Written besides: w and f · dl, [B, K, JP], which times ds and the state are the votes' gradient; and, or added, the
    gradients of the factors.
    """
    b, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    JP: tl.constexpr = J1 + J2
    i, j1, j2 = tl.arange(0, IP), tl.arange(0, J1), J1 + tl.arange(0, J2)
    own = b * I * JP
    t1, t2 = tl.zeros((IP, J1), tl.float32), tl.zeros((IP, J2), tl.float32)
    for k in tl.range(part * share, tl.minimum(K, (part + 1) * share), num_stages=STAGES):
        base, apart = _vote_base(k, b, B, P, I, JP, WIDE)
        u1, u2 = _tile(u_ptr + base, i, j1, apart, I, IP), _tile(u_ptr + base, i, j2, apart, I, IP)
        f1, f2 = _factor(f_ptr, b, k, j1, K, J, F), _factor(f_ptr, b, k, j2, K, J, F)
        m1, m2 = _factor(m_ptr, b, k, j1, K, J, M), _factor(m_ptr, b, k, j2, K, J, M)
        h1 = tl.sum(u1 * _tile(ds_ptr + own, i, j1, JP, I, IP), axis=0)
        h2 = tl.sum(u2 * _tile(ds_ptr + own, i, j2, JP, I, IP), axis=0)
        g1 = tl.sum(u1 * _tile(state_ptr + own, i, j1, JP, I, IP), axis=0)
        g2 = tl.sum(u2 * _tile(state_ptr + own, i, j2, JP, I, IP), axis=0)
        c1, c2 = _couplings(f1 * g1, f2 * g2, j1, j2, J)
        d1, d2 = h1 * f1 * m1, h2 * f2 * m2
        inner = tl.sum(c1 * d1, axis=0) + tl.sum(c2 * d2, axis=0)
        d1, d2 = c1 * (d1 - inner), c2 * (d2 - inner)  # of the logits
        _add_factor(df_ptr, b, k, j1, j2, K, J, h1 * c1 * m1 + d1 * g1, h2 * c2 * m2 + d2 * g2, F, ADD)
        _add_factor(dm_ptr, b, k, j1, j2, K, J, h1 * c1 * f1, h2 * c2 * f2, M, ADD)
        d1, d2 = f1 * d1, f2 * d2
        t1 += d1[None, :] * u1
        t2 += d2[None, :] * u2
        row = (b * K + k) * JP
        kind = w_ptr.dtype.element_ty
        tl.store(dl_ptr + row + j1, d1.to(kind))
        tl.store(dl_ptr + row + j2, d2.to(kind))
        tl.store(w_ptr + row + j1, (c1 * f1 * m1).to(kind))
        tl.store(w_ptr + row + j2, (c2 * f2 * m2).to(kind))
    out = out_ptr + part * B * I * JP + own
    _store_tile(out, i, j1, JP, t1, I, IP)
    _store_tile(out, i, j2, JP, t2, I, IP)


@triton.jit
def _shared(ptr, j):
    """[1, j] in float32: a row for all capsules."""
    return tl.load(ptr + j).to(tl.float32)[None, :]


@triton.jit
def _own(ptr, k, j, K, JP: tl.constexpr):
    """[k, j] in float32: a row of JP for each capsule."""
    return tl.load(ptr + k[:, None] * JP + j[None, :], mask=(k < K)[:, None], other=0.0).to(tl.float32)


@triton.jit
def _factors(ptr, b, k, j, K, J, KIND: tl.constexpr):
    """Factors of several capsules, [k, j] (KIND 2) or [k, 1] (KIND 1), or 1."""
    if KIND == 2:
        known = (k < K)[:, None] & (j < J)[None, :]
        return tl.load(ptr + (b * K + k[:, None]) * J + j[None, :], mask=known, other=0.0).to(tl.float32)
    elif KIND == 1:
        return tl.load(ptr + b * K + k, mask=k < K, other=0.0).to(tl.float32)[:, None]
    else:
        return 1.0


@triton.jit
def _add_factors(ptr, b, k, j1, j2, K, J, v1, v2, KIND: tl.constexpr, ADD: tl.constexpr):
    """`_add_factor` for several capsules: v1 [k, j1], v2 [k, j2]."""
    kind = ptr.dtype.element_ty
    if KIND == 2:
        place = ptr + (b * K + k[:, None]) * J
        p1, p2 = place + j1[None, :], place + j2[None, :]
        known1, known2 = (k < K)[:, None] & (j1 < J)[None, :], (k < K)[:, None] & (j2 < J)[None, :]
        if ADD:
            v1 += tl.load(p1, mask=known1, other=0.0).to(tl.float32)
            v2 += tl.load(p2, mask=known2, other=0.0).to(tl.float32)
        tl.store(p1, v1.to(kind), mask=known1)
        tl.store(p2, v2.to(kind), mask=known2)
    elif KIND == 1:
        both = tl.sum(tl.where((j1 < J)[None, :], v1, 0.0), axis=1)
        both += tl.sum(tl.where((j2 < J)[None, :], v2, 0.0), axis=1)
        place = ptr + b * K + k
        if ADD:
            both += tl.load(place, mask=k < K, other=0.0).to(tl.float32)
        tl.store(place, both.to(kind), mask=k < K)


@triton.jit
def last_kernel(
    u_ptr, f_ptr, m_ptr, state_ptr, ds_ptr, w_ptr, df_ptr, dm_ptr, B, K, P, J, even,
    T: tl.constexpr, I: tl.constexpr, J1: tl.constexpr, J2: tl.constexpr, RUN: tl.constexpr,
    F: tl.constexpr, M: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr, SPARSE: tl.constexpr,
):  # fmt: skip
    """Back through the first iteration, which comes last; and the votes' gradient takes the place of the votes.

    It is w_t · ds_t + (f · dl_t) · S_t over all iterations t = 0 … T-1, with states and ds [T, B, I, JP], and w and
    f · dl of the later iterations in w[t - 1, 0 or 1, B, K, JP]; those of the first three stay in registers. Program
    (b, n) takes `RUN` capsules, one attribute of all of them at a time: nothing but the factors' gradients, at the
    end, is summed across threads. `SPARSE`: a part has fewer votes than there are threads, so that several read the
    same one, and all have to before one of them writes.
    """
    b = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * RUN + tl.arange(0, RUN)
    JP: tl.constexpr = J1 + J2
    j1, j2 = tl.arange(0, J1), J1 + tl.arange(0, J2)
    there = (k < K)[:, None]
    base, apart = _vote_base(k, b, B, P, I, JP, WIDE)
    f1, f2 = _factors(f_ptr, b, k, j1, K, J, F), _factors(f_ptr, b, k, j2, K, J, F)
    m1, m2 = _factors(m_ptr, b, k, j1, K, J, M), _factors(m_ptr, b, k, j2, K, J, M)
    first1 = tl.full((RUN, J1), 1.0, tl.float32) * (even * f1 * m1)
    first2 = tl.full((RUN, J2), 1.0, tl.float32) * (even * f2 * m2)
    w_ptr += b * K * JP
    far = tl.cast(B, tl.int64) * K * JP  # between two kinds of weights
    if T > 1:
        w11, w12 = _own(w_ptr, k, j1, K, JP), _own(w_ptr, k, j2, K, JP)
        dl11, dl12 = _own(w_ptr + far, k, j1, K, JP), _own(w_ptr + far, k, j2, K, JP)
    if T > 2:
        w21, w22 = _own(w_ptr + 2 * far, k, j1, K, JP), _own(w_ptr + 2 * far, k, j2, K, JP)
        dl21, dl22 = _own(w_ptr + 3 * far, k, j1, K, JP), _own(w_ptr + 3 * far, k, j2, K, JP)
    h1, h2 = tl.zeros((RUN, J1), tl.float32), tl.zeros((RUN, J2), tl.float32)
    turn = tl.cast(B, tl.int64) * I * JP  # between two iterations
    for i in tl.range(I, num_stages=STAGES):
        place = u_ptr + (base + i * apart)[:, None]
        ds, state = ds_ptr + (b * I + i) * JP, state_ptr + (b * I + i) * JP
        s1, s2 = _shared(ds, j1), _shared(ds, j2)
        if F + M > 0:
            h1 += tl.load(place + j1[None, :], mask=there, other=0.0).to(tl.float32) * s1
            h2 += tl.load(place + j2[None, :], mask=there, other=0.0).to(tl.float32) * s2
        du1, du2 = first1 * s1, first2 * s2
        if T > 1:
            du1 += w11 * _shared(ds + turn, j1) + dl11 * _shared(state + turn, j1)
            du2 += w12 * _shared(ds + turn, j2) + dl12 * _shared(state + turn, j2)
        if T > 2:
            du1 += w21 * _shared(ds + 2 * turn, j1) + dl21 * _shared(state + 2 * turn, j1)
            du2 += w22 * _shared(ds + 2 * turn, j2) + dl22 * _shared(state + 2 * turn, j2)
        for t in tl.static_range(3, T):
            w, dl = w_ptr + (2 * t - 2) * far, w_ptr + (2 * t - 1) * far
            du1 += _own(w, k, j1, K, JP) * _shared(ds + t * turn, j1)
            du2 += _own(w, k, j2, K, JP) * _shared(ds + t * turn, j2)
            du1 += _own(dl, k, j1, K, JP) * _shared(state + t * turn, j1)
            du2 += _own(dl, k, j2, K, JP) * _shared(state + t * turn, j2)
        if SPARSE:
            tl.debug_barrier()
        tl.store(place + j1[None, :], du1.to(u_ptr.dtype.element_ty), mask=there)
        tl.store(place + j2[None, :], du2.to(u_ptr.dtype.element_ty), mask=there)
    if F + M > 0:
        h1, h2 = h1 * even, h2 * even
        _add_factors(df_ptr, b, k, j1, j2, K, J, h1 * m1, h2 * m2, F, T > 1)
        _add_factors(dm_ptr, b, k, j1, j2, K, J, h1 * f1, h2 * f2, M, T > 1)


@triton.jit
def decide_kernel(
    part_ptr, gain_ptr, bias_ptr, sums_ptr, wide_ptr, state_ptr, out_ptr, B, J, parts,
    I: tl.constexpr, IP: tl.constexpr, JP: tl.constexpr, BLOCK: tl.constexpr,
    BIAS: tl.constexpr, FIRST: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """What follows a pass: sums, bias, squash; and the decisions added to those before, for the next pass.

    Written: the raw sum over parts [B, I, JP]; the decisions so far, in float32 and in the votes' precision,
    [B, I, JP]; or, in the last iteration, decisions and sums, out[0 or 1, b, j, i].
    """
    b = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, IP), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (i < I)[:, None] & (j < JP)[None, :]
    place = (b * I + i[:, None]) * JP + j[None, :]
    raw = tl.zeros((IP, BLOCK), tl.float32)
    for n in range(parts):
        raw += tl.load(part_ptr + n * B * I * JP + place, mask=inside, other=0.0)
    raw = tl.where((j < J)[None, :], raw, 0.0)
    tl.store(sums_ptr + place, raw, mask=inside)
    s = raw * tl.load(gain_ptr).to(tl.float32)
    known = (i < I)[:, None] & (j < J)[None, :]
    if BIAS:
        s += tl.load(bias_ptr + j[None, :] * I + i[:, None], mask=known, other=0.0).to(tl.float32)
    square = tl.sum(s * s, axis=0)
    v = s * (tl.sqrt(square) / (1.0 + square))[None, :]
    if LAST:
        turned = (b * J + j[None, :]) * I + i[:, None]
        tl.store(out_ptr + turned, v.to(out_ptr.dtype.element_ty), mask=known)
        tl.store(out_ptr + B * J * I + turned, s.to(out_ptr.dtype.element_ty), mask=known)
    else:
        if not FIRST:
            v += tl.load(wide_ptr + place, mask=inside, other=0.0)
        tl.store(wide_ptr + place, v, mask=inside)
        tl.store(state_ptr + place, v.to(state_ptr.dtype.element_ty), mask=inside)


@triton.jit
def undecide_kernel(
    part_ptr, gain_ptr, bias_ptr, sums_ptr, dv_ptr, ds_ptr, wide_ptr, far_ptr, B, J, parts,
    I: tl.constexpr, IP: tl.constexpr, JP: tl.constexpr, BLOCK: tl.constexpr,
    BIAS: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    """Backward: from the gradient of decisions to that of the raw sums, ds [B, I, JP], in the votes' precision.

    In the last iteration the decisions' gradient is given, with that of the sums: far[0 or 1, b, j, i]. Before, a
    decision is part of all later states, whose gradients add up in dv [B, I, JP]. The biases' gradient adds up in wide
    [B, I, JP].
    """
    b = tl.program_id(0).to(tl.int64)
    i, j = tl.arange(0, IP), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (i < I)[:, None] & (j < JP)[None, :]
    known = (i < I)[:, None] & (j < J)[None, :]
    place = (b * I + i[:, None]) * JP + j[None, :]
    gain = tl.load(gain_ptr).to(tl.float32)
    s = tl.load(sums_ptr + place, mask=inside, other=0.0) * gain
    if BIAS:
        s += tl.load(bias_ptr + j[None, :] * I + i[:, None], mask=known, other=0.0).to(tl.float32)
    turned = (b * J + j[None, :]) * I + i[:, None]
    if LAST:
        dv = tl.load(far_ptr + turned, mask=known, other=0.0).to(tl.float32)
        tl.store(dv_ptr + place, tl.zeros((IP, BLOCK), tl.float32), mask=inside)
    else:
        dv = tl.load(dv_ptr + place, mask=inside, other=0.0)
        for n in range(parts):
            dv += tl.load(part_ptr + n * B * I * JP + place, mask=inside, other=0.0)
        dv = tl.where((j < J)[None, :], dv, 0.0)
        tl.store(dv_ptr + place, dv, mask=inside)
    # v = s · h(q), q = |s|², h = √q/(1+q): ds = h · dv + s · 2h'(q) · (s · dv), 2h' = (1-q)/(√q (1+q)²).
    square = tl.sum(s * s, axis=0)
    root = tl.sqrt(square)
    over = 1.0 / (1.0 + square)
    slope = tl.where(square > 0.0, (1.0 - square) * over * over / tl.where(square > 0.0, root, 1.0), 0.0)
    ds = dv * (root * over)[None, :] + s * (slope * tl.sum(s * dv, axis=0))[None, :]
    if LAST:
        ds += tl.load(far_ptr + B * J * I + turned, mask=known, other=0.0).to(tl.float32)
        tl.store(wide_ptr + place, ds, mask=inside)
    else:
        tl.store(wide_ptr + place, ds + tl.load(wide_ptr + place, mask=inside, other=0.0), mask=inside)
    tl.store(ds_ptr + place, (ds * gain).to(ds_ptr.dtype.element_ty), mask=inside)


@triton.jit
def sum_kernel(
    u_ptr, w_ptr, out_ptr, B, K, P, J, share,
    I: tl.constexpr, IP: tl.constexpr, JP: tl.constexpr, JB: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Σ_k w_kj · vote_kj over a share of capsules and a block of classes: out[n, b, i, j], in float32."""
    b, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i, j = tl.arange(0, IP)[:, None], tl.program_id(2) * JB + tl.arange(0, JB)
    inside = (i < I) & (j < JP)[None, :]
    total = tl.zeros((IP, JB), tl.float32)
    for k in tl.range(part * share, tl.minimum(K, (part + 1) * share), num_stages=STAGES):
        base, apart = _vote_base(k, b, B, P, I, JP, WIDE)
        u = tl.load(u_ptr + base + i * apart + j[None, :], mask=inside, other=0.0).to(tl.float32)
        w = tl.load(w_ptr + (b * K + k) * J + j, mask=j < J, other=0.0).to(tl.float32)
        total += w[None, :] * u
    tl.store(out_ptr + ((part * B + b) * I + i) * JP + j[None, :], total, mask=inside)


@triton.jit
def agreement_kernel(
    u_ptr, v_ptr, out_ptr, B, K, P, J, share,
    I: tl.constexpr, IP: tl.constexpr, JP: tl.constexpr, JB: tl.constexpr, WIDE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Σ_i vote_kji · v_ji: out[b, k, j], for a share of capsules and a block of classes."""
    b, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i, j = tl.arange(0, IP)[:, None], tl.program_id(2) * JB + tl.arange(0, JB)
    inside = (i < I) & (j < JP)[None, :]
    v = tl.load(v_ptr + (b * I + i) * JP + j[None, :], mask=inside, other=0.0).to(tl.float32)
    for k in tl.range(part * share, tl.minimum(K, (part + 1) * share), num_stages=STAGES):
        base, apart = _vote_base(k, b, B, P, I, JP, WIDE)
        u = tl.load(u_ptr + base + i * apart + j[None, :], mask=inside, other=0.0).to(tl.float32)
        tl.store(out_ptr + (b * K + k) * J + j, tl.sum(u * v, axis=0).to(out_ptr.dtype.element_ty), mask=j < J)
