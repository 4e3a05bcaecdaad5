"""The paper's equations as plain loops in float64: slow, obviously right, the oracle of the tests.

Transcribed from the text of the papers, not from our source, so that an error would have to be made twice:

- "the paper": Ramasinghe, Athuraliya and Khan 2018, A Context-aware Capsule Network for Multi-label Classification
- Sabour et al. 2017, Dynamic Routing Between Capsules: squash, routing, margin loss
- Hinton et al. 2018, Matrix Capsules with EM Routing: EM routing, spread loss
- Ridnik et al. 2021, Asymmetric Loss For Multi-Label Classification
- Lanchantin et al. 2021, General Multi-label Image Classification with Transformers (C-Tran), and its authors' code

Letters:

    B  batch
    N  side of the primary-capsule grid (H and W where the grid is not square)
    D  capsule types in each grid cell
    K  primary capsules, D·N·N; k = (d·N + y)·N + x, type-major
    A  attributes of a primary capsule (the paper writes I)
    J  decision capsules = classes
    I  attributes of a decision capsule

NumPy only stores the numbers. Indices count from 0 in the code and from 1 in the papers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


def _array(values: ArrayLike) -> Array:
    """A float64 copy, so that no function can change its caller's numbers."""
    return np.array(values, dtype=np.float64)


def _softmax(scores: Sequence[float]) -> list[float]:
    """exp(score) / Σ exp(score); the largest score is subtracted first, which changes nothing but the overflow."""
    largest = max(scores)
    exponentials = [math.exp(score - largest) for score in scores]
    total = sum(exponentials)
    return [exponential / total for exponential in exponentials]


def _sigmoid(score: float) -> float:
    """1 / (1 + exp(-score)), written so that exp never overflows."""
    if score >= 0:
        return 1.0 / (1.0 + math.exp(-score))
    return math.exp(score) / (1.0 + math.exp(score))


# ---------------------------------------------------------------------------------------------------------------------
# Capsules and votes


def length(vector: ArrayLike) -> float:
    """|v|, the Euclidean length of one capsule: a class's score (Sabour et al. 2017, section 2)."""
    vector = _array(vector)  # [I]
    return math.sqrt(sum(float(element) ** 2 for element in vector))


def squash(vector: ArrayLike) -> Array:
    """|s|² / (1 + |s|²) · s / |s| for one vector (Sabour et al. 2017, equation 1); the zero vector stays zero."""
    vector = _array(vector)  # [I]
    size = length(vector)
    squashed = np.zeros(len(vector))  # [I]
    if size == 0.0:
        return squashed
    for i in range(len(vector)):
        squashed[i] = size**2 / (1.0 + size**2) * vector[i] / size
    return squashed


def primary_capsules(features: ArrayLike, types: int, attributes: int) -> Array:
    """Z = D·A feature maps regrouped as K capsules of A attributes, not squashed (the paper, section 3.1, D = Z / I).

    Channel c = d·A + a at (y, x) is attribute a of capsule k = (d·H + y)·W + x.
    """
    features = _array(features)  # [B, D*A, H, W]
    batch, channels, height, width = features.shape
    if channels != types * attributes:
        raise ValueError(f"{channels} channels are not {types} types of {attributes} attributes")
    capsules = np.zeros((batch, types * height * width, attributes))  # [B, K, A]
    for b in range(batch):
        for d in range(types):
            for y in range(height):
                for x in range(width):
                    for a in range(attributes):
                        capsules[b, (d * height + y) * width + x, a] = features[b, d * attributes + a, y, x]
    return capsules


def cast_votes(capsules: ArrayLike, weight: ArrayLike) -> Array:
    """P_kj = W_kj u_k, one matrix for each pair (k, j) (Sabour et al. 2017, equation 2: û_j|i = W_ij u_i)."""
    capsules = _array(capsules)  # [B, K, A]
    weight = _array(weight)  # [K, A, J, I]
    batch, count, attributes = capsules.shape
    _, _, classes, decision_attributes = weight.shape
    if weight.shape[:2] != (count, attributes):
        raise ValueError(f"weight {weight.shape} does not fit capsules {capsules.shape}")
    votes = np.zeros((batch, count, classes, decision_attributes))  # [B, K, J, I]
    for b in range(batch):
        for k in range(count):
            for j in range(classes):
                for i in range(decision_attributes):
                    votes[b, k, j, i] = sum(capsules[b, k, a] * weight[k, a, j, i] for a in range(attributes))
    return votes


def cast_shared_votes(capsules: ArrayLike, weight: ArrayLike) -> Array:
    """cast_votes with one matrix for each type d, shared over the grid: capsule k has type k // (K / D)."""
    capsules = _array(capsules)  # [B, K, A]
    weight = _array(weight)  # [D, A, J, I]
    batch, count, attributes = capsules.shape
    types, _, classes, decision_attributes = weight.shape
    if count % types != 0 or weight.shape[1] != attributes:
        raise ValueError(f"weight {weight.shape} does not fit capsules {capsules.shape}")
    cells = count // types  # capsules of one type
    votes = np.zeros((batch, count, classes, decision_attributes))  # [B, K, J, I]
    for b in range(batch):
        for k in range(count):
            d = k // cells
            for j in range(classes):
                for i in range(decision_attributes):
                    votes[b, k, j, i] = sum(capsules[b, k, a] * weight[d, a, j, i] for a in range(attributes))
    return votes


# ---------------------------------------------------------------------------------------------------------------------
# Initial routing weights (RW)


def capsule_statistic(capsules: ArrayLike, eps: float = 1e-3) -> Array:
    """s_k = μ_k / max(σ_k, ε) over the attributes of capsule k, σ the population deviation (the paper, section 3.1)."""
    capsules = _array(capsules)  # [B, K, A]
    batch, count, attributes = capsules.shape
    statistic = np.zeros((batch, count))  # [B, K]
    for b in range(batch):
        for k in range(count):
            mean = sum(capsules[b, k, a] for a in range(attributes)) / attributes
            variance = sum((capsules[b, k, a] - mean) ** 2 for a in range(attributes)) / attributes
            statistic[b, k] = mean / max(math.sqrt(variance), eps)
    return statistic


def initial_routing(capsules: ArrayLike, kernel: ArrayLike, grid: tuple[int, int], bias: float = 0.0) -> Array:
    """b̂ = (b_1 … b_K): the statistic's D maps, each convolved with the one f×f kernel (the paper, section 3.1).

    "Convolved" as in convolutional networks: cross-correlation, the kernel is not flipped. Zero padding (f - 1) / 2
    keeps the size of the grid. The repetition over the J classes is left to the routing.
    """
    statistic = capsule_statistic(capsules)  # [B, K]
    kernel = _array(kernel)  # [f, f]
    height, width = grid
    batch, count = statistic.shape
    size = kernel.shape[0]
    if kernel.shape != (size, size) or size % 2 == 0:
        raise ValueError(f"the kernel must be square and odd, not {kernel.shape}")
    if count % (height * width) != 0:
        raise ValueError(f"{count} capsules do not fill a grid of {height} x {width}")
    types = count // (height * width)
    padding = (size - 1) // 2
    routing = np.zeros((batch, count))  # [B, K]
    for b in range(batch):
        for d in range(types):
            for y in range(height):
                for x in range(width):
                    total = bias
                    for v in range(size):
                        for u in range(size):
                            row, column = y + v - padding, x + u - padding
                            if 0 <= row < height and 0 <= column < width:  # outside the map is zero
                                total += kernel[v, u] * statistic[b, (d * height + row) * width + column]
                    routing[b, (d * height + y) * width + x] = total
    return routing


# ---------------------------------------------------------------------------------------------------------------------
# Dynamic routing


def dynamic_routing(
    votes: ArrayLike,
    iterations: int,
    initial: ArrayLike | None = None,
    initial_as: Literal["couplings", "logits", "gate"] = "couplings",
    normalize: Literal["classes", "capsules"] = "classes",
    bias: ArrayLike | None = None,
    gain: float = 1.0,
) -> tuple[Array, Array, Array]:
    """Procedure 1 of Sabour et al. 2017, with the initial routing weights of the paper, section 3.1.

    `initial` [B, K] is repeated over the classes, the paper's K×J matrix B; [B, K, J] is taken as it is.

    - "logits": the logits start at `initial` instead of 0
    - "couplings": the first couplings are `initial`; the later ones softmax(logits) · `initial`
    - "gate": the votes are multiplied by `initial` before everything

    `gain` multiplies the sums of votes; Sabour's procedure has none, which is 1.

    Returns the decisions [B, J, I], the couplings [B, K, J] of the last iteration and the logits [B, K, J] those came
    from.
    """
    if iterations < 1:
        raise ValueError("routing needs at least one iteration")
    if initial_as not in ("couplings", "logits", "gate"):
        raise ValueError(f"unknown initial_as {initial_as!r}")
    if normalize not in ("classes", "capsules"):
        raise ValueError(f"unknown normalize {normalize!r}")
    votes = _array(votes)  # [B, K, J, I]
    batch, count, classes, attributes = votes.shape
    offset = np.zeros((classes, attributes)) if bias is None else _array(bias)  # [J, I]

    weights: Array | None = None  # [B, K, J]
    if initial is not None:
        given = _array(initial)  # [B, K] or [B, K, J]
        weights = np.zeros((batch, count, classes))
        for b in range(batch):
            for k in range(count):
                for j in range(classes):
                    weights[b, k, j] = given[b, k] if given.ndim == 2 else given[b, k, j]

    logits = np.zeros((batch, count, classes))  # [B, K, J]
    couplings = np.zeros((batch, count, classes))  # [B, K, J]
    decisions = np.zeros((batch, classes, attributes))  # [B, J, I]
    for b in range(batch):
        if weights is not None and initial_as == "logits":
            for k in range(count):
                for j in range(classes):
                    logits[b, k, j] = weights[b, k, j]
        if weights is not None and initial_as == "gate":
            for k in range(count):
                for j in range(classes):
                    for i in range(attributes):
                        votes[b, k, j, i] = votes[b, k, j, i] * weights[b, k, j]

        for iteration in range(iterations):
            # c = softmax(b)
            if normalize == "classes":
                for k in range(count):
                    probabilities = _softmax([logits[b, k, j] for j in range(classes)])
                    for j in range(classes):
                        couplings[b, k, j] = probabilities[j]
            else:
                for j in range(classes):
                    probabilities = _softmax([logits[b, k, j] for k in range(count)])
                    for k in range(count):
                        couplings[b, k, j] = probabilities[k]
            if weights is not None and initial_as == "couplings":
                for k in range(count):
                    for j in range(classes):
                        if iteration == 0:
                            couplings[b, k, j] = weights[b, k, j]
                        else:
                            couplings[b, k, j] = couplings[b, k, j] * weights[b, k, j]

            # s_j = gain · Σ_k c_kj P_kj + bias_j; v_j = squash(s_j)
            for j in range(classes):
                total = np.zeros(attributes)  # [I]
                for i in range(attributes):
                    summed = sum(couplings[b, k, j] * votes[b, k, j, i] for k in range(count))
                    total[i] = gain * summed + offset[j, i]
                squashed = squash(total)
                for i in range(attributes):
                    decisions[b, j, i] = squashed[i]

            # b_kj += P_kj · v_j
            if iteration < iterations - 1:
                for k in range(count):
                    for j in range(classes):
                        logits[b, k, j] += sum(votes[b, k, j, i] * decisions[b, j, i] for i in range(attributes))
    return decisions, couplings, logits


# ---------------------------------------------------------------------------------------------------------------------
# CRF module


def mean_field(
    votes: ArrayLike,
    pairwise: ArrayLike,
    iterations: int,
    unary: Literal["original", "current"] = "original",
    returns: Literal["logits", "marginals"] = "logits",
    centre: bool = False,
    scale: float = 1.0,
) -> Array:
    """Algorithm 1 of the paper, section 3.2: mean field over the classes, for each (b, k, i) on its own. [B, K, J, I]

    `pairwise` [J, J] is E_p, from class j' (first) to class j (second), or [I, J, J] with one for each attribute; its
    diagonal is never used (j ≠ j').

    To the letter it is unary="current", returns="marginals": line 4 subtracts the message from the current H. With
    unary="original" the message is subtracted from the votes at every iteration, as in Zheng et al. 2015. `centre`
    takes 1 / J from each H in the message.
    """
    if unary not in ("original", "current"):
        raise ValueError(f"unknown unary {unary!r}")
    if returns not in ("logits", "marginals"):
        raise ValueError(f"unknown returns {returns!r}")
    votes = _array(votes)  # [B, K, J, I]
    pairwise = _array(pairwise)  # [J, J] or [I, J, J]
    batch, count, classes, attributes = votes.shape
    mean = 1.0 / classes if centre else 0.0
    result = np.zeros((batch, count, classes, attributes))  # [B, K, J, I]
    for b in range(batch):
        for k in range(count):
            for i in range(attributes):
                potential = pairwise[i] if pairwise.ndim == 3 else pairwise  # [J, J]
                prediction = [float(votes[b, k, j, i]) for j in range(classes)]  # [J]
                logits = list(prediction)  # [J]
                marginals = _softmax(logits)  # line 1, [J]
                for _ in range(iterations):
                    updated = []
                    for j in range(classes):
                        message = 0.0  # line 3
                        for other in range(classes):
                            if other != j:
                                message += (marginals[other] - mean) * float(potential[other, j])
                        message *= scale
                        updated.append((prediction[j] if unary == "original" else marginals[j]) - message)  # line 4
                    logits = updated
                    marginals = _softmax(logits)  # line 5
                for j in range(classes):
                    result[b, k, j, i] = marginals[j] if returns == "marginals" else logits[j]
    return result


# ---------------------------------------------------------------------------------------------------------------------
# Correlation module (CORR)


def correlation_recursion(votes: ArrayLike, alpha: ArrayLike) -> Array:
    """f_ρ(P_1j | P_2j … P_Kj), the recursive equation of the paper, section 3.3 (cholesky_big). [B, J, I]

    f after K predictions is α_K / √(1 + α_K²) · (f after K - 1) + P_Kj / √(1 + α_K²), and f after the first is P_1j.
    The paper's α_k, k = 2 … K, is alpha[..., k - 2].
    """
    votes = _array(votes)  # [B, K, J, I]
    alpha = _array(alpha)  # [B, J, K-1]
    batch, count, classes, attributes = votes.shape
    if alpha.shape != (batch, classes, count - 1):
        raise ValueError(f"alpha {alpha.shape} does not fit votes {votes.shape}")
    decisions = np.zeros((batch, classes, attributes))  # [B, J, I]
    for b in range(batch):
        for j in range(classes):
            for i in range(attributes):
                value = votes[b, 0, j, i]  # P_1
                for k in range(2, count + 1):  # the paper's k
                    alpha_k = float(alpha[b, j, k - 2])
                    prediction = votes[b, k - 1, j, i]  # P_k
                    value = alpha_k / math.sqrt(1 + alpha_k**2) * value + prediction / math.sqrt(1 + alpha_k**2)
                decisions[b, j, i] = value
    return decisions


def correlation_weights(alpha: ArrayLike) -> Array:
    """The weight f_ρ gives to each of the K predictions: the recursion run on the K unit vectors (section 3.3). [K]"""
    alpha = _array(alpha)  # [K-1]
    count = len(alpha) + 1
    votes = np.zeros((1, count, 1, count))  # [B=1, K, J=1, I=K]: prediction k is the unit vector e_k
    for k in range(count):
        votes[0, k, 0, k] = 1.0
    weights: Array = correlation_recursion(votes, alpha.reshape(1, 1, count - 1))[0, 0]  # [K]
    return weights


# ---------------------------------------------------------------------------------------------------------------------
# EM routing


def em_routing(
    votes: ArrayLike,
    activations: ArrayLike,
    beta_use: ArrayLike,
    beta_activate: ArrayLike,
    iterations: int,
    inverse_temperature: Sequence[float],
    eps: float = 1e-6,
) -> tuple[Array, Array, Array]:
    """Procedure 1 of Hinton et al. 2018: M-step, then E-step except after the last iteration.

    `activations` [B, K] are the primary capsules'; `beta_use` [J] and `beta_activate` [J] the paper's β_u and β_a;
    `inverse_temperature` its λ, one for each iteration. Returns the means [B, J, I], the decision capsules' activations
    [B, J] and the assignments r [B, K, J] of the last M-step, already multiplied by the primary activations.
    """
    if iterations < 1 or len(inverse_temperature) != iterations:
        raise ValueError("routing needs at least one iteration, and one inverse temperature for each")
    votes = _array(votes)  # [B, K, J, I]
    primary = _array(activations)  # [B, K]
    beta_use = _array(beta_use)  # [J]
    beta_activate = _array(beta_activate)  # [J]
    batch, count, classes, attributes = votes.shape

    means = np.zeros((batch, classes, attributes))  # [B, J, I]
    variances = np.zeros((batch, classes, attributes))  # [B, J, I]
    decision_activations = np.zeros((batch, classes))  # [B, J]
    assignments = np.zeros((batch, count, classes))  # [B, K, J], the r of the M-step
    for b in range(batch):
        posterior = np.zeros((count, classes))  # [K, J], R
        for k in range(count):
            for j in range(classes):
                posterior[k, j] = 1.0 / classes

        for iteration in range(iterations):
            # M-step
            for j in range(classes):
                for k in range(count):
                    assignments[b, k, j] = posterior[k, j] * primary[b, k]
                mass = sum(assignments[b, k, j] for k in range(count)) + eps
                total_cost = 0.0
                for i in range(attributes):
                    mean = sum(assignments[b, k, j] * votes[b, k, j, i] for k in range(count)) / mass
                    spread = sum(assignments[b, k, j] * (votes[b, k, j, i] - mean) ** 2 for k in range(count)) / mass
                    variance = max(spread, eps)
                    cost = (beta_use[j] + math.log(math.sqrt(variance))) * mass
                    means[b, j, i] = mean
                    variances[b, j, i] = variance
                    total_cost += cost
                decision_activations[b, j] = _sigmoid(inverse_temperature[iteration] * (beta_activate[j] - total_cost))

            # E-step
            if iteration < iterations - 1:
                for k in range(count):
                    scores = []  # [J]
                    for j in range(classes):
                        log_density = 0.0
                        for i in range(attributes):
                            variance = variances[b, j, i]
                            log_density -= (votes[b, k, j, i] - means[b, j, i]) ** 2 / (2 * variance)
                            log_density -= 0.5 * math.log(2 * math.pi * variance)
                        scores.append(math.log(max(decision_activations[b, j], eps)) + log_density)
                    probabilities = _softmax(scores)
                    for j in range(classes):
                        posterior[k, j] = probabilities[j]
    return means, decision_activations, assignments


# ---------------------------------------------------------------------------------------------------------------------
# Mean field between the decisions


def decision_field(
    unary: ArrayLike,
    pairwise: ArrayLike,
    prior: ArrayLike,
    iterations: int,
    known: ArrayLike | None = None,
    trust: float = 1.0,
) -> tuple[Array, Array]:
    """q_j = sigmoid(u_j + Σ_{j'≠j} (q_j' - π_j') W[j', j]), from q = sigmoid(u); NaN in `known` is not known.

    What classes say that are not known is multiplied with `trust`.
    Returns q and the logits before it, [B, J].
    """
    unary = _array(unary)  # [B, J]
    pairwise = _array(pairwise)  # [J, J]
    prior = _array(prior)  # [J]
    batch, classes = unary.shape
    told = np.full((batch, classes), math.nan) if known is None else _array(known)  # [B, J]
    chances = np.zeros((batch, classes))  # [B, J]
    logits = unary.copy()  # [B, J]
    for b in range(batch):
        for iteration in range(iterations + 1):
            if iteration > 0:
                for j in range(classes):
                    message = 0.0
                    for other in range(classes):
                        if other != j:
                            belief = trust if math.isnan(told[b, other]) else 1.0
                            message += belief * (chances[b, other] - prior[other]) * pairwise[other, j]
                    logits[b, j] = unary[b, j] + message
            for j in range(classes):
                chances[b, j] = _sigmoid(logits[b, j]) if math.isnan(told[b, j]) else told[b, j]
    return chances, logits


# ---------------------------------------------------------------------------------------------------------------------
# C-Tran: self-attention over grid cells and labels together


class Affine(NamedTuple):
    """W · x + b; or, as a layer normalisation, W times what is normalised, each number by itself, plus b."""

    weight: Array
    bias: Array


class EncoderLayer(NamedTuple):
    """One layer: softmax(q · k / √(width of a head)) over all tokens, then W₂ · relu(W₁ · x), each added and normed."""

    query: Affine
    key: Affine
    value: Affine
    out: Affine
    first_norm: Affine
    inner: Affine
    outer: Affine
    second_norm: Affine


def c_tran(
    features: ArrayLike,
    known: ArrayLike,
    embed: Affine,
    labels: ArrayLike,
    absent: ArrayLike,
    present: ArrayLike,
    norm: Affine,
    layers: Sequence[EncoderLayer],
    heads: int,
    readout: Affine,
) -> Array:
    """Logits [B, J] of features [B, C, H, W]; `known` is 1, 0, or NaN where nothing is known, [B, J].

    labels [J, d]; absent, present [d]. Cells have Query2Label's positions.
    """
    features, known, labels = _array(features), _array(known), _array(labels)
    batch, _, height, width = features.shape
    classes, depth = labels.shape
    states = {0.0: _array(absent), 1.0: _array(present)}
    logits = np.zeros((batch, classes))
    for b in range(batch):
        sequence = []
        for y in range(height):
            for x in range(width):
                cell = _affine(embed, features[b, :, y, x])
                sequence.append(cell + _cell_position(y, x, height, width, depth))
        for j in range(classes):
            token = labels[j].copy()
            if not math.isnan(known[b, j]):
                token += states[float(known[b, j])]
            sequence.append(token)
        sequence = [_layer_norm(norm, token) for token in sequence]
        for layer in layers:
            sequence = _encoder_layer(layer, sequence, heads)
        for j in range(classes):
            token = sequence[height * width + j]
            logits[b, j] = sum(readout.weight[j, i] * token[i] for i in range(depth)) + readout.bias[j]
    return logits


def _encoder_layer(layer: EncoderLayer, sequence: list[Array], heads: int) -> list[Array]:
    """Attention and feed-forward of all tokens [d], each plus what came in, normalised."""
    depth = len(sequence[0])
    share = depth // heads
    queries = [_affine(layer.query, token) for token in sequence]
    keys = [_affine(layer.key, token) for token in sequence]
    values = [_affine(layer.value, token) for token in sequence]
    results = []
    for token, query in zip(sequence, queries, strict=True):
        found = np.zeros(depth)
        for head in range(heads):
            own = range(head * share, (head + 1) * share)
            alike = _softmax([sum(query[i] * key[i] for i in own) / math.sqrt(share) for key in keys])
            for i in own:
                found[i] = sum(weight * value[i] for weight, value in zip(alike, values, strict=True))
        attended = _layer_norm(layer.first_norm, token + _affine(layer.out, found))
        hidden = np.array([max(0.0, number) for number in _affine(layer.inner, attended)])
        results.append(_layer_norm(layer.second_norm, attended + _affine(layer.outer, hidden)))
    return results


def _cell_position(y: int, x: int, height: int, width: int, depth: int) -> Array:
    """Sines and cosines of the row, then of the column, [d] (Carion et al. 2020, normalised to 2π)."""
    numbers = []
    for index, count in ((y, height), (x, width)):
        angle = 2 * math.pi * (index + 1) / count
        angles = [angle / 10_000 ** (2 * i / (depth // 2)) for i in range(depth // 4)]
        numbers += [math.sin(each) for each in angles] + [math.cos(each) for each in angles]
    return np.array(numbers)


def _affine(layer: Affine, vector: Array) -> Array:
    rows, columns = layer.weight.shape
    return np.array([sum(layer.weight[r, c] * vector[c] for c in range(columns)) + layer.bias[r] for r in range(rows)])


def _layer_norm(layer: Affine, vector: Array, eps: float = 1e-5) -> Array:
    mean = sum(vector) / len(vector)
    variance = sum((number - mean) ** 2 for number in vector) / len(vector)
    return np.array(
        [
            weight * (number - mean) / math.sqrt(variance + eps) + bias
            for weight, number, bias in zip(layer.weight, vector, layer.bias, strict=True)
        ]
    )


# ---------------------------------------------------------------------------------------------------------------------
# Losses: summed over the classes, averaged over the batch


def margin_loss(
    lengths: ArrayLike, targets: ArrayLike, positive: float = 0.9, negative: float = 0.1, down_weight: float = 0.5
) -> float:
    """T max(0, m⁺ - |v|)² + λ (1 - T) max(0, |v| - m⁻)² (Sabour et al. 2017, equation 4)."""
    lengths = _array(lengths)  # [B, J]
    targets = _array(targets)  # [B, J]
    batch, classes = lengths.shape
    total = 0.0
    for b in range(batch):
        for j in range(classes):
            present = targets[b, j] * max(0.0, positive - lengths[b, j]) ** 2
            absent = (1 - targets[b, j]) * max(0.0, lengths[b, j] - negative) ** 2
            total += float(present + down_weight * absent)
    return float(total / batch)


def length_cross_entropy(lengths: ArrayLike, targets: ArrayLike, eps: float = 1e-6) -> float:
    """-[y log p + (1 - y) log(1 - p)], the length taken as the probability p and clipped to [ε, 1 - ε]."""
    lengths = _array(lengths)  # [B, J]
    targets = _array(targets)  # [B, J]
    batch, classes = lengths.shape
    total = 0.0
    for b in range(batch):
        for j in range(classes):
            probability = min(max(float(lengths[b, j]), eps), 1 - eps)
            target = float(targets[b, j])
            total -= target * math.log(probability) + (1 - target) * math.log(1 - probability)
    return float(total / batch)


def asymmetric_loss(
    scores: ArrayLike,
    targets: ArrayLike,
    gamma_negative: float = 4.0,
    gamma_positive: float = 0.0,
    clip: float = 0.05,
    eps: float = 1e-6,
) -> float:
    """-[y (1 - p)^γ⁺ log p + (1 - y) p_m^γ⁻ log(1 - p_m)], p_m = max(p - m, 0) (Ridnik et al. 2021, equations 4 to 6).

    `scores` are probabilities p in [0, 1]; `clip` is the probability margin m.
    """
    scores = _array(scores)  # [B, J]
    targets = _array(targets)  # [B, J]
    batch, classes = scores.shape
    total = 0.0
    for b in range(batch):
        for j in range(classes):
            probability = float(scores[b, j])
            target = float(targets[b, j])
            shifted = max(probability - clip, 0.0)
            present = (1 - probability) ** gamma_positive * math.log(max(probability, eps))
            absent = shifted**gamma_negative * math.log(max(1 - shifted, eps))
            total -= target * present + (1 - target) * absent
    return float(total / batch)


def spread_loss(scores: ArrayLike, targets: ArrayLike, margin: float = 0.2) -> float:
    """Σ max(0, m - (a_t - a_i))² (Hinton et al. 2018, equation 3), over every pair of present t and absent i."""
    scores = _array(scores)  # [B, J]
    targets = _array(targets)  # [B, J]
    batch, classes = scores.shape
    total = 0.0
    for b in range(batch):
        for present in range(classes):
            for absent in range(classes):
                if targets[b, present] == 1 and targets[b, absent] == 0:
                    total += max(0.0, margin - float(scores[b, present] - scores[b, absent])) ** 2
    return float(total / batch)


def two_way_loss(scores: ArrayLike, targets: ArrayLike, temperature: float = 4.0, eps: float = 1e-6) -> float:
    """softplus(log Σ_n exp(x_n) + T log Σ_p exp(-x_p / T)) within images, and within classes (Kobayashi 2023).

    `scores` are probabilities, whose logits x are taken, with logarithms of at least log ε. Means are over the images,
    or classes, with at least one present pair.
    """
    scores = _array(scores)  # [B, J]
    targets = _array(targets)  # [B, J]
    batch, classes = scores.shape

    def term(pairs: list[tuple[int, int]]) -> float:
        of_present, of_absent = 0.0, 0.0
        for b, j in pairs:
            probability = float(scores[b, j])
            logit = math.log(max(probability, eps)) - math.log(max(1 - probability, eps))
            if targets[b, j] == 1:
                of_present += math.exp(-logit / temperature)
            else:
                of_absent += math.exp(logit)
        return math.log(1 + of_absent * of_present**temperature)

    total = 0.0
    images = [[(b, j) for j in range(classes)] for b in range(batch)]
    columns = [[(b, j) for b in range(batch)] for j in range(classes)]
    for groups in (images, columns):
        terms = [term(group) for group in groups if any(targets[pair] == 1 for pair in group)]
        if terms:
            total += sum(terms) / len(terms)
    return float(total)


# ---------------------------------------------------------------------------------------------------------------------
# Metric


def average_precision(scores: ArrayLike, targets: ArrayLike) -> float:
    """AP = Σ_n (R_n - R_{n-1}) P_n over the distinct scores as thresholds, highest first (the paper, section 4: mAP).

    Not interpolated; equal scores enter together, as in scikit-learn's average_precision_score. 0 without a positive.
    """
    scores = _array(scores)  # [n]
    targets = _array(targets)  # [n]
    count = len(scores)
    positives = sum(1 for n in range(count) if targets[n] == 1)
    if positives == 0:
        return 0.0
    total = 0.0
    previous_recall = 0.0
    for threshold in sorted({float(score) for score in scores}, reverse=True):
        retrieved = sum(1 for n in range(count) if scores[n] >= threshold)
        correct = sum(1 for n in range(count) if scores[n] >= threshold and targets[n] == 1)
        precision = correct / retrieved
        recall = correct / positives
        total += (recall - previous_recall) * precision
        previous_recall = recall
    return total
