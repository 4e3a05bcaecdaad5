"""Both ways to compute, torch with kept features and ONNX Runtime with what no known label changes, answer alike."""

import numpy as np
import pytest

from contextcaps.serving.onnx_engine import OnnxEngine
from contextcaps.serving.opening import engine_of, open_engine
from contextcaps.serving.torch_engine import TorchEngine
from contextcaps.tagging.loading import load

pytest.importorskip("onnxruntime")
KNOWN = ({}, {"oven": True}, {"oven": True, "person": False}, {})


@pytest.fixture(scope="module")
def engines():
    by_onnx = open_engine("coco80", "coco80", "cpu")
    return by_onnx, engine_of("coco80", load("coco80", "cpu", runtime="torch"))


@pytest.fixture(scope="module")
def pixels(engines) -> list[np.ndarray]:
    random = np.random.default_rng(2)
    height, width = engines[0].tagger.config.image_size
    return [
        np.repeat(np.repeat(random.integers(0, 256, (3, 8, 8)), height // 8, 1), width // 8, 2).astype(np.uint8)
        for _ in KNOWN
    ]


def test_which_one_computes(engines) -> None:
    assert [type(each) for each in engines] == [OnnxEngine, TorchEngine]
    assert engines[0].describe() == engines[1].describe()


def test_scores_with_different_labels_known_in_a_batch(engines, pixels) -> None:
    by_onnx, by_torch = (each.compute(pixels, KNOWN) for each in engines)
    for place, ((_, scores), (_, same)) in enumerate(zip(by_onnx, by_torch, strict=True)):
        np.testing.assert_allclose(scores, same, atol=2e-4)
        (tagging,) = engines[1].tagger.tag(pixels[place].transpose(1, 2, 0), known=KNOWN[place])
        np.testing.assert_allclose(same, tagging.scores, atol=1e-5)


def test_moves_and_questions(engines, pixels) -> None:
    explained, asked = [], []
    for each in engines:
        ((features, _),) = each.compute(pixels[:1], [{}])
        features = each.ready(features)
        explained.append(each.explain("a", features, ["sink"], KNOWN[2], KNOWN[1]))
        asked.append(each.question(features, KNOWN[1]))
        told = each.told(features, KNOWN[2])
        np.testing.assert_allclose(told, each.scores(features, KNOWN[2]), atol=1e-5)
        assert each.explain("a", features, ["sink"], KNOWN[1], KNOWN[1]).moves == ()
        assert each.explain("a", features, ["sink"], {}).moves == ()
    by_onnx, by_torch = explained
    moves = {move.name: move for move in by_torch.moves}
    for move in by_onnx.moves:
        if move.name in moves:  # one at the least that counts as a move may be in one of them only
            assert move.logit_change == pytest.approx(moves[move.name].logit_change, abs=1e-3)
            assert move.before == pytest.approx(moves[move.name].before, abs=2e-4)
    for found, same in zip(by_onnx.classes, by_torch.classes, strict=True):
        np.testing.assert_allclose(found.heat_map(), same.heat_map(), atol=2e-3)
    assert asked[0][0] == asked[1][0]
    assert asked[0][1] == pytest.approx(asked[1][1], abs=1e-3)
    every = dict.fromkeys(engines[0].classes, False)
    assert [each.question(each.ready(each.compute(pixels[:1], [{}])[0][0]), every) for each in engines] == [None, None]
