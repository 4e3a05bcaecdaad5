"""Processes and devices: one process, or several on one or more machines, by Lightning's Fabric."""

import atexit
import dataclasses
import os
from typing import Any

import torch

from contextcaps.documents import counted
from contextcaps.evaluation.predictions import Precision
from contextcaps.training.config import TrainConfig
from contextcaps.training.lightning import Fabric
from contextcaps.training.sharding import shard_network

__all__ = ["agree", "device_name", "make_fabric", "settle_processes", "settled_precision"]

_PLUGINS: dict[Precision, str] = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}


def settle_processes(config: TrainConfig) -> TrainConfig:
    """The configuration with its precision chosen, and the number of processes that torchrun started.

    Raises:
        ValueError: this machine cannot do what the configuration asks for.
    """
    gpu = _uses_gpu(config)
    if config.accelerator == "gpu" and not gpu:
        raise ValueError("accelerator: expected cpu or auto, as torch sees no GPU here, got gpu")
    if "TORCHELASTIC_RUN_ID" in os.environ:
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        nodes = int(os.environ["WORLD_SIZE"]) // devices
        asked = (config.devices, config.nodes)
        if asked not in ((1, 1), (devices, nodes)):
            raise ValueError(f"devices, nodes: expected {devices}, {nodes}, as torchrun was told, got {asked}")
        config = dataclasses.replace(config, devices=devices, nodes=nodes)
    if gpu and config.devices > torch.cuda.device_count():
        raise ValueError(f"devices: expected at most {torch.cuda.device_count()}, the GPUs here, got {config.devices}")
    return dataclasses.replace(config, precision=_precision(config, gpu))


def make_fabric(config: TrainConfig) -> Fabric:
    """The fabric that a settled configuration asks for, launched: from here on, all processes run."""
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it cuBLAS is refused
        torch.use_deterministic_algorithms(True)
    fabric = Fabric(
        accelerator="cuda" if _uses_gpu(config) else "cpu",
        devices=config.devices,
        num_nodes=config.nodes,
        strategy=_strategy(config),
        precision=_PLUGINS[settled_precision(config)],  # type: ignore[arg-type]
    )
    fabric.launch()
    if torch.distributed.is_initialized():
        atexit.register(_leave_processes)
    return fabric


def _leave_processes() -> None:
    """Leave the process group while the interpreter still stands.

    A thread of Gloo may still hold a finished message when Python begins to end; dropping it then aborts the process.
    Fabric itself leaves only NCCL's groups.
    """
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def agree(fabric: Fabric, *flags: bool) -> tuple[bool, ...]:
    """Each flag, if any process has it."""
    if fabric.world_size == 1:
        return flags
    votes = torch.tensor([float(flag) for flag in flags], device=fabric.device)
    return tuple(bool(vote > 0) for vote in fabric.all_reduce(votes, reduce_op="sum"))


def settled_precision(config: TrainConfig) -> Precision:
    """The precision of a settled configuration."""
    if config.precision == "auto":
        raise ValueError("precision: expected a settled configuration, got auto")
    return config.precision


def _uses_gpu(config: TrainConfig) -> bool:
    return torch.cuda.is_available() and config.accelerator != "cpu"


def _precision(config: TrainConfig, gpu: bool) -> Precision:
    if config.precision == "auto":
        return "bf16" if gpu and torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    if config.precision == "fp16" and not gpu:
        raise ValueError("precision: expected fp32 or bf16 on a CPU, got fp16")
    return config.precision


def _strategy(config: TrainConfig) -> Any:
    processes = config.devices * config.nodes
    if config.shard:
        from lightning_fabric.strategies import ModelParallelStrategy  # type: ignore[attr-defined]

        return ModelParallelStrategy(parallelize_fn=shard_network, data_parallel_size=processes, tensor_parallel_size=1)
    return "ddp" if processes > 1 else "auto"


def device_name(device: torch.device) -> str:
    """A device in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU, {os.cpu_count()} cores, {counted(threads, 'thread')}"
