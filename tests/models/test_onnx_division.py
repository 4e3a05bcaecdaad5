"""Graphs divided at known labels give the same numbers as whole ones, whatever the head."""

import numpy as np
import pytest
import torch

from contextcaps.models.expected_drops import expected_drops
from contextcaps.models.network import CapsuleNetwork
from contextcaps.models.onnx_division import divide
from contextcaps.models.onnx_opening import open_onnx_file
from contextcaps.models.onnx_told import OnnxTold
from contextcaps.models.registry import create_model

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.long

MODELS = {
    "contextcaps": {},
    "contextcaps-rw-crf-corr": {"field": {"rank": 2, "groups": 3}},
    "gap": {"field": {}},
    "c-tran": {"c_tran": {"width": 16, "attention_heads": 2, "layers": 1}},
    "gmp": {},
}


def network_of(name: str) -> CapsuleNetwork:
    """A small network whose classes have something to say of each other."""
    torch.manual_seed(3)
    options = dict(MODELS[name])
    if "capsnet" in name or "contextcaps" in name:
        options["capsules"] = {"types": 2}
    network = create_model(name, 5, 32, "small", **options).eval()
    if network.field is not None:
        with torch.no_grad():
            for weight in network.field.parameters():
                weight.add_(0.3 * torch.randn_like(weight))
    return network


@pytest.mark.parametrize("name", MODELS)
def test_the_parts_of_a_graph_give_what_the_whole_gives(name, tmp_path) -> None:
    from contextcaps.models.onnx_export import model_of
    from contextcaps.models.onnx_file import sealed

    network, path = network_of(name), tmp_path / "model.onnx"
    path.write_bytes(sealed(model_of(network, None, True).SerializeToString()))
    scorer, _ = open_onnx_file(path)
    assert (scorer.division is not None) == network.config.takes_known
    image = np.random.default_rng(1).integers(0, 256, (3, 32, 32), dtype=np.uint8)
    if not network.config.takes_known:
        with pytest.raises(ValueError, match="cannot be divided"):
            OnnxTold(scorer)
        return
    told = OnnxTold(scorer)
    rows = np.full((3, 5), np.nan, np.float32)  # [T, J]
    rows[1, 2], rows[2] = 1, (0, 1, 0, np.nan, 1)
    untold = told.untold(image)
    for row, scores in zip(rows, told.scores(untold, rows), strict=True):
        np.testing.assert_allclose(scores, scorer.scores(image[None], row)[0], atol=1e-6)
        if "evidence" in untold:
            (whole,), found = scorer.parts(image, row), told.parts(untold, row)
            for each in ("scores", "logits", "evidence", "messages"):
                np.testing.assert_allclose(getattr(found, each), getattr(whole, each), atol=1e-5)
        with torch.no_grad():
            features = network.folded().features(torch.from_numpy(image)[None])
            drops, _ = expected_drops(network, features, torch.from_numpy(row)[None])
        np.testing.assert_allclose(told.expected_drops(untold, row), drops[0].numpy(), atol=1e-4)
    assert np.isnan(told.expected_drops(untold, np.zeros(5, np.float32))).all()


def test_what_cannot_be_divided() -> None:
    import onnx
    from onnx import TensorProto, helper

    def graph(*nodes) -> bytes:
        made = helper.make_graph(
            list(nodes),
            "g",
            [helper.make_tensor_value_info(each, TensorProto.FLOAT, ["batch", 2]) for each in ("images", "known")],
            [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 2])],
        )
        return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)]).SerializeToString()

    assert divide(graph(helper.make_node("Add", ["images", "known"], ["scores"]))) is None  # nothing is kept
    assert divide(graph(helper.make_node("Neg", ["images"], ["scores"]))) is None  # nothing is told
    found = divide(
        graph(helper.make_node("Neg", ["images"], ["passed"]), helper.make_node("Add", ["passed", "known"], ["scores"]))
    )
    assert found is not None
    assert (found.passed, found.added, found.told) == (("passed",), ("passed",), ("scores",))
    assert divide(b"\x3a\x03\x0a\x01\xff") is divide(found.whole[:100]) is divide(b"") is None  # damaged
    assert [each.name for each in onnx.load_from_string(found.rest).graph.input] == ["passed", "known"]
    assert [each.name for each in onnx.load_from_string(found.whole).graph.output] == ["scores", "passed"]
