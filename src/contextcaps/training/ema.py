"""An exponential moving average of the weights (EMA): steadier than the weights themselves, at no cost when tagging."""

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

__all__ = ["EMA"]


class EMA:
    """Exponential moving average of a network's parameters and floating buffers.

    mean ← decay · mean + (1 − decay) · weights after each step, with a decay that begins lower, min(decay, (1 + t) /
    (10 + t)) at step t, so that a short run's mean is not mostly its random start.

    Ours rather than torch's `AveragedModel` or timm's `ModelEmaV3`: those copy the module, which FSDP2 does not allow.

    Args:
        network: whose weights; the mean begins at them.
        decay: such as 0.999; larger is smoother.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.decay, self.steps = decay, 0
        self.means = {name: tensor.detach().clone() for name, tensor in _floating(network)}

    @torch.no_grad()
    def update(self, network: nn.Module) -> None:
        """Take the weights after one step into the mean."""
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        means = [_local(mean) for mean in self.means.values()]
        weights = [_local(tensor.detach()) for _, tensor in _floating(network)]
        torch._foreach_lerp_(means, weights, 1 - decay)  # a few kernels for all tensors, not one for each

    @contextlib.contextmanager
    def inside(self, network: nn.Module) -> Iterator[None]:
        """Swap the mean into the network inside the block."""
        self._exchange(network)
        try:
            yield
        finally:
            self._exchange(network)

    @torch.no_grad()
    def _exchange(self, network: nn.Module) -> None:
        for name, tensor in _floating(network):
            kept = tensor.detach().clone()
            tensor.copy_(self.means[name])
            self.means[name].copy_(kept)

    def state_dict(self) -> dict[str, object]:
        """Return its state, on the CPU; where processes share the weights, all of them have to call it."""
        return {"steps": self.steps, "means": {name: _whole(mean).cpu() for name, mean in self.means.items()}}

    @torch.no_grad()
    def load_state_dict(self, state: dict) -> None:
        """Load what `state_dict` returned."""
        self.steps = int(state["steps"])
        for name, mean in self.means.items():
            saved = state["means"][name].to(mean.device)
            mean.copy_(
                distribute_tensor(saved, mean.device_mesh, mean.placements) if isinstance(mean, DTensor) else saved
            )


def _floating(network: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in (*network.named_parameters(), *network.named_buffers()):
        if tensor.is_floating_point():
            yield name, tensor


def _local(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor that processes share, or the tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _whole(tensor: Tensor) -> Tensor:
    """Copy a tensor, put together where processes share it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()
