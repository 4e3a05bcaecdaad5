"""The contract of everything that takes votes: each routing, CRF and aggregation variant inherits these tests.

A subclass overrides the fixture `variant` with its own list; the variant says how to run the operation and gives the
legend of each operand beside the votes. Everything else follows from the legends.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
import torch
from operands import Sizes, draw, draw_probabilities, permute_classes, shape_of, stretch, take_image
from torch import Tensor

VOTES = "B K J I"

# All sizes differ, so that no two axes can be exchanged unnoticed.
STANDARD: Sizes = {"B": 2, "K": 6, "J": 4, "I": 3, "r": 5}
SMALL: Sizes = {"B": 2, "K": 3, "J": 3, "I": 2, "r": 2}
EDGE_SIZES = {
    "standard": (2, 6, 4, 3),
    "one image": (1, 6, 4, 3),
    "one capsule": (2, 1, 4, 3),
    "one class": (2, 6, 1, 3),
    "two classes": (2, 6, 2, 3),
    "one attribute": (2, 6, 4, 1),
    "one of all": (1, 1, 1, 1),
    "many": (3, 40, 17, 16),
}

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def tolerance(dtype: torch.dtype) -> float:
    """Largest error against float64, relative to the largest output, of a run in `dtype`: eight roundings."""
    return 8 * torch.finfo(dtype).eps


@dataclass(frozen=True)
class Variant:
    """One way to use an operation on votes."""

    name: str
    run: Callable[..., Tensor]
    """Called as run(votes, **operands), and where `iterates` also with iterations=…."""
    operands: dict[str, str] = field(default_factory=dict)
    """The legend of each operand beside the votes."""
    probabilities: tuple[str, ...] = ()
    """Operands whose values lie between 0 and 1."""
    output: str = "B J I"
    """The output's legend."""
    iterates: bool = True
    """Whether the operation has a number of iterations."""
    without_effect: tuple[str, ...] = ()
    """Operands that provably change nothing, and so get no gradient but rounding noise."""
    called: dict[str, str] = field(default_factory=dict)
    """What error messages call an operand, where that is not its name here."""

    def name_in_messages(self, name: str) -> str:
        return self.called.get(name, name)

    def legends(self) -> dict[str, str]:
        """Of the votes and all operands."""
        return {"votes": VOTES, **self.operands}

    def inputs(self, sizes: Sizes, dtype: torch.dtype = torch.float64) -> dict[str, Tensor]:
        """Seeded votes and operands."""
        return {
            name: (draw_probabilities if name in self.probabilities else draw)(legend, sizes, seed, dtype)
            for seed, (name, legend) in enumerate(self.legends().items())
        }


def gradients(variant: Variant, inputs: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    """The output, and the gradient of each input under a seeded weighting of the output."""
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in inputs.items()}
    output = variant.run(**leaves)
    weighting = torch.randn(output.shape, generator=torch.Generator().manual_seed(99), dtype=torch.float64)
    (output.double() * weighting).sum().backward()
    # What an operation does not use at all (one capsule's absent alpha) gets no gradient rather than a zero.
    found = {name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for name, leaf in leaves.items()}
    return output.detach(), found


def assert_refused(run: Callable[[], object], name: str, *fragments: str) -> str:
    """`run` raises a ValueError that names the input, says "expected" and "got", and holds all the fragments.

    Returns the message.
    """
    with pytest.raises(ValueError, match="expected") as caught:
        run()
    message = str(caught.value)
    for fragment in (name, "got", *fragments):
        assert fragment in message, f"{fragment!r} is not in {message!r}"
    return message


def assert_close_to(output: Tensor, exact: Tensor, relative: float) -> None:
    """The largest error is at most `relative` of the largest exact value."""
    error = (output.double() - exact.double()).abs().max()
    assert error <= relative * exact.double().abs().max()


class VoteContract:
    """Inherit, and override `variant`."""

    @pytest.fixture
    def variant(self) -> Variant:
        raise NotImplementedError("a subclass says which variants it has")

    @pytest.mark.parametrize("lengths", EDGE_SIZES.values(), ids=EDGE_SIZES)
    def test_output_has_its_shape_and_is_finite(self, variant: Variant, lengths: tuple[int, int, int, int]) -> None:
        sizes = {**dict(zip("BKJI", lengths, strict=True)), "r": 2}
        inputs = variant.inputs(sizes, torch.float32)
        output = variant.run(**inputs)
        assert output.shape == shape_of(variant.output, sizes)
        assert output.dtype == torch.float32
        assert output.isfinite().all()

    def test_gradients_equal_finite_differences(self, variant: Variant) -> None:
        inputs = {name: tensor.requires_grad_() for name, tensor in variant.inputs(SMALL).items()}
        names = list(inputs)
        assert torch.autograd.gradcheck(
            lambda *tensors: variant.run(**dict(zip(names, tensors, strict=True))), tuple(inputs.values())
        )

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    def test_each_dtype_is_finite_and_close_to_float64(self, variant: Variant, dtype: torch.dtype) -> None:
        inputs = variant.inputs(STANDARD, dtype)
        exact = variant.run(**{name: tensor.double() for name, tensor in inputs.items()})
        output, found = gradients(variant, inputs)
        assert output.dtype == dtype
        assert output.isfinite().all()
        assert_close_to(output, exact, tolerance(dtype))
        for name, gradient in found.items():
            assert gradient.dtype == dtype
            assert gradient.isfinite().all(), name
            assert name in variant.without_effect or gradient.any(), f"{name} gets no gradient"

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
    def test_half_precision_holds_over_many_capsules(self, variant: Variant, dtype: torch.dtype) -> None:
        inputs = variant.inputs({**STANDARD, "K": 500}, dtype)
        exact = variant.run(**{name: tensor.double() for name, tensor in inputs.items()})
        output, found = gradients(variant, inputs)
        # By the norm: among so many numbers, one always sits where a softmax enlarges the rounding.
        assert (output.double() - exact).norm() <= tolerance(dtype) * exact.norm()
        assert all(gradient.isfinite().all() for gradient in found.values())

    def test_autocast_is_finite_and_close(self, variant: Variant) -> None:
        inputs = variant.inputs(STANDARD, torch.float32)
        exact = variant.run(**inputs)
        with torch.autocast("cpu", torch.bfloat16):
            output, found = gradients(variant, inputs)
        assert output.isfinite().all()
        assert_close_to(output, exact, tolerance(torch.bfloat16))
        assert all(gradient.isfinite().all() and gradient.dtype == torch.float32 for gradient in found.values())

    def test_each_image_alone_gives_the_same(self, variant: Variant) -> None:
        inputs = variant.inputs(STANDARD)
        together = variant.run(**inputs)
        for image in range(STANDARD["B"]):
            legends = variant.legends()
            alone = variant.run(**{name: take_image(tensor, legends[name], image) for name, tensor in inputs.items()})
            torch.testing.assert_close(alone, together[image : image + 1], rtol=1e-12, atol=1e-12)

    def test_permuting_classes_permutes_the_output(self, variant: Variant) -> None:
        inputs = variant.inputs(STANDARD)
        order = [2, 0, 3, 1]
        legends = variant.legends()
        permuted = variant.run(**{name: permute_classes(value, legends[name], order) for name, value in inputs.items()})
        expected = permute_classes(variant.run(**inputs), variant.output, order)
        assert not torch.allclose(expected, variant.run(**inputs))
        torch.testing.assert_close(permuted, expected, rtol=1e-12, atol=1e-12)

    def test_zero_votes_are_finite(self, variant: Variant) -> None:
        for dtype in DTYPES:
            inputs = variant.inputs(STANDARD, dtype)
            output, found = gradients(variant, {**inputs, "votes": torch.zeros_like(inputs["votes"])})
            assert output.isfinite().all()
            assert all(gradient.isfinite().all() for gradient in found.values()), dtype

    def test_inputs_are_left_as_they_were(self, variant: Variant) -> None:
        inputs = variant.inputs(STANDARD)
        variant.run(**inputs)
        for name, untouched in variant.inputs(STANDARD).items():
            assert inputs[name].equal(untouched), name

    @pytest.mark.parametrize("added", [-1, 1])
    def test_votes_of_wrong_number_of_dimensions_are_refused(self, variant: Variant, added: int) -> None:
        inputs = variant.inputs(STANDARD)
        votes = inputs.pop("votes")
        wrong = votes[0] if added < 0 else votes.unsqueeze(0)
        assert_refused(lambda: variant.run(votes=wrong, **inputs), "votes", "[B, K, J, I]", str(list(wrong.shape)))

    def test_votes_without_elements_are_refused(self, variant: Variant) -> None:
        inputs = variant.inputs(STANDARD)
        inputs["votes"] = inputs["votes"][:, :0]
        assert_refused(lambda: variant.run(**inputs), "votes", "[2, 0, 4, 3]")

    def test_an_operand_of_wrong_shape_is_refused(self, variant: Variant) -> None:
        inputs = variant.inputs(STANDARD)
        for name, legend in variant.operands.items():
            wrongs = [stretch(inputs[name], axis) for axis in range(len(legend.split()))]
            wrongs.append(inputs[name].unsqueeze(0))
            for wrong in wrongs:
                changed = {**inputs, name: wrong}
                message = assert_refused(lambda changed=changed: variant.run(**changed), variant.name_in_messages(name))
                # Where two operands share a size, the other one may be told to have what this one has.
                assert str(list(wrong.shape)) in message or f"={max(wrong.shape)}" in message

    def test_whole_numbers_are_refused(self, variant: Variant) -> None:
        inputs = variant.inputs(STANDARD)
        for name in inputs:
            changed = {**inputs, name: inputs[name].long()}
            told = variant.name_in_messages(name)
            assert_refused(lambda changed=changed: variant.run(**changed), told, "floating-point", "int64")

    def test_not_a_number_is_refused(self, variant: Variant) -> None:
        inputs = variant.inputs(STANDARD)
        for name in inputs:
            spoilt = inputs[name].clone()
            spoilt.view(-1)[-1] = float("nan")
            changed = {**inputs, name: spoilt}
            told = variant.name_in_messages(name)
            assert_refused(lambda changed=changed: variant.run(**changed), told, f"NaN in 1 of {spoilt.numel()}")

    def test_what_is_no_tensor_is_refused(self, variant: Variant) -> None:
        inputs = variant.inputs(STANDARD)
        for name in inputs:
            changed = {**inputs, name: 3.0}
            told = variant.name_in_messages(name)
            assert_refused(lambda changed=changed: variant.run(**changed), told, "Tensor", "float")

    @pytest.mark.parametrize("iterations", [-1, 1.5, True, "3"], ids=repr)
    def test_wrong_iterations_are_refused(self, variant: Variant, iterations: object) -> None:
        if not variant.iterates:
            with pytest.raises(TypeError, match="iterations"):
                variant.run(**variant.inputs(STANDARD), iterations=iterations)
            return
        assert_refused(
            lambda: variant.run(**variant.inputs(STANDARD), iterations=iterations), "iterations", repr(iterations)
        )
