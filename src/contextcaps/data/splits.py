"""Keep the splits that a source gives, or else divide its samples so that every part has every class.

The division is the iterative stratification of Sechidis, Tsoumakas and Vlahavas, "On the Stratification of
Multi-Label Data", ECML PKDD 2011, https://doi.org/10.1007/978-3-642-23808-6_10, Algorithm 1: the class with the fewest
samples left is distributed first, each sample to a part that lacks that class. Four things are added (the package
iterative-stratification has the algorithm without them):

- Parts have exact sizes.
- A class with at least as many positives as there are parts is to have one in each.
- Of several parts that lack the class, the sample goes to the one that lacks most of all its classes, in proportion.
  (The paper: most of this one class, in samples.) On cocostuff171 and coco128 this halves the remaining differences.
- Where a positive is still missing in the end, samples of two parts are exchanged.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from contextcaps.data.problems import DataError, OnBad
from contextcaps.data.source import Source, Subset, absent_classes
from contextcaps.data.source_registry import open_source
from contextcaps.data.vocabulary import canonical_split

__all__ = ["FRACTIONS", "iterative_split", "open_part", "open_splits", "split_source"]

FRACTIONS: Mapping[str, float] = {"train": 0.8, "val": 0.1, "test": 0.1}
"""Shares of the parts by default."""

_NAMES_A_SPLIT = re.compile(r"[?&]split=")


def open_splits(
    spec: str, *, on_bad: OnBad = "stop", seed: int = 0, val_as_test: bool = False, **options: Any
) -> dict[str, Source]:
    """Open a source as its parts "train", "val" and, where there is one, "test".

    - Given parts are kept as they are, under these three names; others (such as VOC's trainval) are not opened.
    - Train and test, but no validation part: a ninth of train, chosen by `iterative_split`, becomes "val", so that
      train and val stand to each other as in `FRACTIONS`.
    - Train and validation only, as where the test labels are kept secret (ADE20K, COCO): both are kept, nothing is
      divided and there is no "test"; results are then reported on "val", as is usual for these sets. With
      `val_as_test` the given validation part becomes "test", and "val" is taken out of train as above.
    - No given parts, a single one under any name, or one asked for by name (`split="validation"`): that is divided by
      `FRACTIONS`.

    Args:
        spec, on_bad, options: as in `open_source`.
        seed: seed of the division, where one is made.
        val_as_test: keep a validation part without a test part beside it for tests, so that nothing is chosen on it.
    """
    source = open_source(spec, on_bad=on_bad, **options)
    if not source.splits or "split" in options or _NAMES_A_SPLIT.search(spec):
        return dict(split_source(source, seed=seed))
    if len(source.splits) == 1:
        only = source.splits[0]
        whole = source if source.split == only else open_source(spec, on_bad=on_bad, **options, split=only)
        if canonical_split(only) != "train":
            whole.assumptions.append(f"{only} is the only part there is: divided into train, val and test")
        return dict(split_source(whole, seed=seed))
    given: dict[str, Source] = {}
    for name in source.splits:
        part = canonical_split(name)
        if part is not None and part not in given:
            # Some kinds open one of their splits where none is asked for.
            given[part] = source if source.split == name else open_source(spec, on_bad=on_bad, **options, split=name)
    if "train" not in given:
        raise DataError(
            f"{spec}: expected a training part, got only {', '.join(source.splits)}; "
            f"to divide one of them, name it: split={source.splits[0]}"
        )
    for part, opened in given.items():
        if opened.classes != given["train"].classes:
            raise DataError(
                f"{spec}: expected the same classes in all parts, got {len(given['train'].classes)} in train and "
                f"{len(opened.classes)} in {part} (or in another order); give the list of classes as an option"
            )
    if val_as_test and "val" in given and "test" not in given:
        given["test"] = given.pop("val")
    if "val" not in given:
        if "test" not in given:  # with parts of other names beside it
            return dict(split_source(given["train"], seed=seed))
        kept = FRACTIONS["train"] / (FRACTIONS["train"] + FRACTIONS["val"])
        given |= split_source(given["train"], {"train": kept, "val": 1 - kept}, seed)
    return {part: given[part] for part in FRACTIONS if part in given}


def open_part(spec: str, wanted: Sequence[str], *, on_bad: OnBad = "stop") -> Source:
    """Open one part of a source: the split that its name asks for, the first wanted one that it has, or all of it.

    Args:
        spec, on_bad: as in `open_source`.
        wanted: "train", "val" or "test", the best first.
    """
    source = open_source(spec, on_bad=on_bad)
    if _NAMES_A_SPLIT.search(spec):
        return source
    by_name = {canonical_split(name): name for name in reversed(source.splits)}
    chosen = next((by_name[part] for part in wanted if part in by_name), None)
    if chosen is None or chosen == source.split:
        return source
    return open_source(spec, on_bad=on_bad, split=chosen)


def split_source(source: Source, fractions: Mapping[str, float] = FRACTIONS, seed: int = 0) -> dict[str, Subset]:
    """Divide a source by `iterative_split`; note the classes without a positive in a part in that part's notes.

    Args:
        source: the source to divide.
        fractions: each part's share of the samples; they add up to 1.
        seed: decides ties.
    """
    present = source.targets() == 1  # [n, J]: unknown labels have no say
    try:
        parts = iterative_split(present, fractions, seed)
    except DataError as error:
        raise DataError(f"{source.name}: {error}") from None
    somewhere = present.any(axis=0)  # [J]
    subsets = {}
    for part, indices in parts.items():
        subset = subsets[part] = Subset(source, indices.tolist(), part)
        absent = somewhere & ~present[indices].any(axis=0)
        subset.notes += absent_classes(source.classes, absent, f" in {part}")
    return subsets


def iterative_split(targets: np.ndarray, fractions: Mapping[str, float], seed: int = 0) -> dict[str, np.ndarray]:
    """Divide samples so that every class is spread over the parts like the samples themselves.

    Every sample lands in exactly one part. Sizes are the fractions of n, rounded (within 1 of them), but no part is
    empty. A class with at least as many positives as there are parts has one in each, unless the search finds no such
    division for these sizes and co-occurrences.

    Args:
        targets: [n, J], non-zero where sample i has class j.
        fractions: each part's share; above 0, adding up to 1.
        seed: decides ties. The same seed gives the same parts on every machine.

    Returns:
        Ascending sample indices of each part.

    >>> parts = iterative_split(np.eye(2, dtype=int)[[0, 0, 0, 0, 1, 1]], {"train": 0.5, "test": 0.5})
    >>> {part: len(indices) for part, indices in parts.items()}
    {'train': 3, 'test': 3}
    """
    targets = np.asarray(targets)
    if targets.ndim != 2:
        raise ValueError(f"targets: expected shape [n, J], got {list(targets.shape)}")
    targets = targets != 0  # [n, J]
    shares = np.array(list(fractions.values()), dtype=np.float64)  # [K]
    if not len(shares) or not (shares > 0).all() or abs(shares.sum() - 1) > 1e-6:
        raise ValueError(f"fractions: expected numbers above 0 that add up to 1, got {dict(fractions)}")
    if len(targets) < len(shares):
        raise DataError(f"expected at least as many samples as parts ({len(shares)}), got {len(targets)}")
    random = np.random.default_rng(seed)
    sizes = _sizes(len(targets), shares)  # [K]
    part_of = _distribute(targets, shares, sizes, random)  # [n]
    _exchange_for_missing(targets, part_of, len(shares), random)
    return {part: np.flatnonzero(part_of == k) for k, part in enumerate(fractions)}


def _sizes(count: int, shares: np.ndarray) -> np.ndarray:
    """Return whole numbers [K] nearest to count · shares with the sum `count` (largest remainders), each at least 1."""
    exact = count * shares / shares.sum()
    sizes = np.floor(exact).astype(np.int64)
    remainders = np.argsort(sizes - exact, kind="stable")
    sizes[remainders[: count - sizes.sum()]] += 1
    while (sizes == 0).any():
        sizes[np.argmin(sizes)] += 1
        sizes[np.argmax(sizes)] -= 1
    return sizes


def _distribute(targets: np.ndarray, shares: np.ndarray, sizes: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return each sample's part [n]: Algorithm 1 of Sechidis et al. with the additions above."""
    count, parts = len(targets), len(shares)
    totals = targets.sum(axis=0)  # [J]
    lacking = np.outer(totals, shares)  # [J, K]: positives that each part still lacks
    short = np.where((totals >= parts)[:, None], np.clip(1 - lacking, 0, None), 0)  # [J, K]
    lacking += short
    lacking[:, np.argmax(shares)] -= short.sum(axis=1)

    samples, classes = np.nonzero(targets)  # one entry per label, by sample
    visit = random.permutation(count)  # [n]: samples of a class are visited in random order
    by_class = np.lexsort((visit[samples], classes))
    holders = np.split(samples[by_class], np.cumsum(totals)[:-1])  # [J] lists of samples
    classes_of = np.split(classes, np.cumsum(targets.sum(axis=1))[:-1])  # [n] lists of classes

    # Plain lists: one number at a time, they are several times as fast as arrays.
    lacks, room, dice = lacking.tolist(), sizes.tolist(), random.random((count, parts)).tolist()
    per_class = (1 / np.outer(np.maximum(totals, 1), shares)).tolist()  # [J, K]: lacks as shares of what was asked for
    per_size = (1 / sizes).tolist()  # [K]
    left = np.where(totals > 0, totals, count + 1)  # [J]: samples not distributed yet; above count once all are
    part_of = np.full(count, -1, dtype=np.int64)
    while (left <= count).any():
        rarest = int(np.argmin(left))
        given = holders[rarest][part_of[holders[rarest]] < 0]
        row = lacks[rarest]
        for sample in given.tolist():
            own, dealt = classes_of[sample].tolist(), dice[sample]
            *_, part = max(
                (
                    min(row[k], 1),
                    sum(lacks[each][k] * per_class[each][k] for each in own) + room[k] * per_size[k],
                    dealt[k],
                    k,
                )
                for k in range(parts)
                if room[k]
            )
            part_of[sample] = part
            room[part] -= 1
            for each in own:
                lacks[each][part] -= 1
        left -= targets[given].sum(axis=0)
        left[left <= 0] = count + 1
        left[rarest] = count + 1
    unlabelled = np.flatnonzero(part_of < 0)
    part_of[random.permutation(unlabelled)] = np.repeat(np.arange(parts), room)
    return part_of


def _exchange_for_missing(targets: np.ndarray, part_of: np.ndarray, parts: int, random: np.random.Generator) -> None:
    """Exchange samples between parts, in place, until every class with enough positives has one in every part.

    A local search: for a class that a part lacks, the best exchange of one of its samples for one of the part's,
    counted in classes that parts lack; exchanges that gain nothing are made, too, to leave dead ends, and samples that
    have just moved stay for a while (tabu search). It gives up when nothing was gained for `patience` exchanges.
    """
    donors_looked_at, receivers_looked_at, patience = 64, 256, 200
    enough = targets.sum(axis=0) >= parts  # [J]
    present = np.stack([targets[part_of == k].sum(axis=0) for k in range(parts)])  # [K, J]
    best, best_missing = part_of.copy(), int(((present == 0) & enough).sum())
    moved = np.full(len(targets), -1)  # [n]: the exchange from which a sample may move again
    step = last_gain = 0
    while best_missing and step - last_gain < patience:
        step += 1
        missing = np.argwhere((present == 0) & enough)
        part, wanted = missing[random.integers(len(missing))]
        free = moved < step
        donors = _draw(np.flatnonzero(targets[:, wanted] & free), donors_looked_at, random)
        receivers = _draw(np.flatnonzero((part_of == part) & free), receivers_looked_at, random)
        if not len(donors) or not len(receivers):
            continue
        costs = np.empty((len(donors), len(receivers)), dtype=np.int64)
        for other in np.unique(part_of[donors]):
            rows = part_of[donors] == other
            # One exchange changes a count by 1 at most: only classes that a part has at most once can be lost or won.
            close = np.flatnonzero(enough & ((present[part] <= 1) | (present[other] <= 1)))
            gain = targets[donors[rows]][:, None, close].astype(np.int8) - targets[receivers][None, :, close]
            after_part = np.minimum(present[part, close], 2) + gain
            after_other = np.minimum(present[other, close], 2) - gain
            before = (present[[part, other]][:, close] == 0).sum()
            costs[rows] = (after_part == 0).sum(axis=-1) + (after_other == 0).sum(axis=-1) - before
        cheapest = np.argwhere(costs == costs.min())
        row, column = cheapest[random.integers(len(cheapest))]
        donor, receiver = donors[row], receivers[column]
        other = part_of[donor]
        change = targets[donor].astype(np.int64) - targets[receiver]
        present[part] += change
        present[other] -= change
        part_of[donor], part_of[receiver] = part, other
        moved[[donor, receiver]] = step + random.integers(1, 2 + min(6, len(targets) // 4))
        still_missing = int(((present == 0) & enough).sum())
        if still_missing < best_missing:
            best, best_missing, last_gain = part_of.copy(), still_missing, step
    part_of[:] = best


def _draw(indices: np.ndarray, count: int, random: np.random.Generator) -> np.ndarray:
    """Draw at most `count` of the indices."""
    return indices if len(indices) <= count else random.choice(indices, count, replace=False)
