"""ONNX files that may come from anybody: each that will not do is refused in one line, before it is computed."""

import json
import struct

import numpy as np
import pytest

from contextcaps.models.files import ModelFileError
from contextcaps.models.onnx_file import fields_of, read_onnx_file, sealed
from contextcaps.models.onnx_opening import METADATA, ONNX_FORMAT, open_onnx_file
from contextcaps.models.registry import model_config

onnx = pytest.importorskip("onnx")
helper, tensors = onnx.helper, onnx.TensorProto


def document(classes: int = 3) -> dict:
    config = model_config("gap", classes, 8, "small")
    return {"format": ONNX_FORMAT, "config": {"format": "contextcaps-1", **config.to_dict()}, "trained": None}


def model(classes: int = 3, opset: int = 18, metadata: object = None, side: int = 8, **changed):
    """Mean of the pixels times a weight for each class: as little of a tagger as there can be."""
    nodes = [
        helper.make_node("Cast", ["images"], ["numbers"], to=tensors.FLOAT),
        helper.make_node("ReduceMean", ["numbers", "axes"], ["means"], keepdims=0),
        helper.make_node("MatMul", ["means", "weight"], ["logits"]),
        helper.make_node("Sigmoid", ["logits"], ["scores"]),
    ]
    weight = onnx.numpy_helper.from_array(np.ones((3, classes), np.float32), "weight")
    axes = onnx.numpy_helper.from_array(np.array([2, 3]), "axes")
    images = helper.make_tensor_value_info("images", tensors.UINT8, ["batch", 3, side, side])
    scores = helper.make_tensor_value_info(changed.get("output", "scores"), tensors.FLOAT, ["batch", classes])
    graph = helper.make_graph(nodes, "g", [images], [scores], [weight, axes])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    described = document() if metadata is None else metadata
    helper.set_model_props(made, {METADATA: described if isinstance(described, str) else json.dumps(described)})
    return made


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tagger.onnx"


def refusal(path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(ModelFileError) as caught:
        open_onnx_file(path)[0].scores(np.zeros((1, 3, 8, 8), np.uint8))
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message


def test_a_whole_file_is_opened_and_any_batch_computed(path) -> None:
    path.write_bytes(sealed(model().SerializeToString()))
    scorer, trained = open_onnx_file(path)
    assert trained is None
    for count in (0, 1, 5, 17):
        assert scorer.scores(np.zeros((count, 3, 8, 8), np.uint8)).shape == (count, 3)
    found = read_onnx_file(path)
    assert (found.opset, found.nodes, found.external) == (18, 4, {})


def test_every_truncation_is_refused(path) -> None:
    whole = sealed(model().SerializeToString())
    for length in (0, 1, 10, len(whole) // 2, len(whole) - 1):
        refusal(path, whole[:length])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "it has no graph"),
        (b"\x89PNG\r\n\x1a\n" * 9, "no ONNX file"),
        (b"\x3a\xff\xff\xff\xff\x0f", "a field reaches beyond its end"),
        (b"\x3a" + b"\xff" * 11, "a number of more than 64 bits"),
    ],
)
def test_other_files(path, content, says) -> None:
    assert says in refusal(path, content)


def test_foreign_metadata_classes_opsets_and_shapes(path) -> None:
    foreign = model()
    del foreign.metadata_props[:]
    cases = {
        "not one of contextcaps": foreign,
        "cut off or no JSON": model(metadata="{"),
        "gives scores of shape ['batch', 4]; its metadata name 3 classes": model(4),
        "takes images as tensor(uint8) of shape ['batch', 3, 9, 9]": model(side=9),
        "gives no scores": model(output="logits"),
        "it needs version 99 of ONNX's operators; install a newer one": model(opset=99),
        'no "format": "contextcaps-1"': model(metadata={"format": ONNX_FORMAT, "config": {}}),
        "num_classes": model(
            metadata={"format": ONNX_FORMAT, "config": {"format": "contextcaps-1", "num_classes": -1}}
        ),
        "its classes are not those": model(metadata={**document(), "trained": {"thresholds": {"a": 1}}}),
    }
    for says, made in cases.items():
        assert says in refusal(path, sealed(made.SerializeToString())), says


def test_weights_elsewhere_are_never_followed(path, tmp_path) -> None:
    for location in ("weights.bin", "../secret", "/etc/passwd"):
        made = model()
        weight = made.graph.initializer[0]
        weight.ClearField("raw_data")
        weight.data_location = tensors.EXTERNAL
        entry = weight.external_data.add()
        entry.key, entry.value = "location", location
        assert "is in another file, which is not followed" in refusal(path, sealed(made.SerializeToString()))
    inside = model()  # also of a constant
    constant = helper.make_tensor("hidden", tensors.FLOAT, [1], [0.0])
    constant.data_location = tensors.EXTERNAL
    inside.graph.node.append(helper.make_node("Constant", [], ["x"], value=constant))
    assert "'hidden' is in another file" in refusal(path, sealed(inside.SerializeToString()))


def test_a_loop_without_end_and_functions_are_refused(path) -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["goes_on"])],
        "body",
        [helper.make_tensor_value_info(name, kind, []) for name, kind in (("n", tensors.INT64), ("go", tensors.BOOL))],
        [helper.make_tensor_value_info("goes_on", tensors.BOOL, [])],
    )
    made = model()
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.array(2**62), "times"))
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.array(True), "always"))
    made.graph.node.insert(0, helper.make_node("Loop", ["times", "always"], [], body=body))
    assert "it has a loop, or another graph within its graph" in refusal(path, sealed(made.SerializeToString()))
    made = model()
    made.functions.append(helper.make_function("own", "f", ["x"], ["y"], [], [helper.make_opsetid("", 18)]))
    assert "it has functions or a training" in refusal(path, sealed(made.SerializeToString()))


def test_huge_and_negative_shapes(path) -> None:
    for dims in ([2**40], [2**31, 2**31], [-1]):
        made = model()
        del made.graph.initializer[0].dims[:]
        made.graph.initializer[0].dims.extend(dims)
        assert "expected at most 536,870,912" in refusal(path, sealed(made.SerializeToString()))


@pytest.mark.parametrize("sides", [300, 1_000_000])
def test_more_axes_than_any_weight_has(path, sides) -> None:
    made = model()
    del made.graph.initializer[0].dims[:]
    made.graph.initializer[0].dims.extend([2**63 - 1] * sides)
    assert "more than 64 axes" in refusal(path, sealed(made.SerializeToString()))


def test_random_damage_is_seen_and_refused_in_one_line(path) -> None:
    whole, random = sealed(model().SerializeToString()), np.random.default_rng(0)
    for count in (1, 3) * 40:
        damaged = bytearray(whole)
        for place in random.integers(0, len(whole), count):
            damaged[place] ^= 1 << random.integers(0, 8)
        if bytes(damaged) != whole:
            refusal(path, bytes(damaged))


def test_numbers_are_read_as_protocol_buffers_have_them() -> None:
    message = memoryview(b"\x08\x96\x01" + b"\x12\x02hi" + b"\x1d" + struct.pack("<f", 1.0))
    assert [(field, value if isinstance(value, int) else bytes(value)) for field, value in fields_of(message)] == [
        (1, 150),
        (2, b"hi"),
        (3, struct.pack("<f", 1.0)),
    ]
