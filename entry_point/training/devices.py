"""The device and precision of this process, and communication with the other ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import TrainerConfig, check_ranks

# How long until a peer that vanished without closing its connections is noticed.
PEER_TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class Devices:
    """This process's device and rank. One process drives one device."""

    device: torch.device
    autocast_dtype: torch.dtype | None
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    cpu_group: dist.ProcessGroup | None = None
    """All ranks, on the CPU: for objects, and for votes that must not wait for the device."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def precision(self) -> str:
        return "bf16" if self.autocast_dtype is torch.bfloat16 else "fp32"

    def autocast(self) -> torch.autocast:
        """Autocast to bf16 if the job's precision is bf16, else a no-op."""
        return torch.autocast(
            self.device.type,
            dtype=self.autocast_dtype or torch.bfloat16,
            enabled=self.autocast_dtype is not None,
        )

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over all ranks, in place."""
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def gather(self, value: Any) -> list[Any]:
        """All ranks' values in rank order, on every rank."""
        if self.cpu_group is None:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.cpu_group)
        return values

    def from_first(self, value: Any) -> Any:
        """The first rank's value, on every rank."""
        if self.cpu_group is None:
            return value
        shared = [value]
        dist.broadcast_object_list(shared, src=0, group=self.cpu_group)
        return shared[0]

    def describe(self) -> str:
        name = (
            torch.cuda.get_device_name(self.device)
            if self.device.type == "cuda"
            else f"CPU, {torch.get_num_threads()} threads"
        )
        return f"{self.world_size} x {name}, {self.precision}"


@contextmanager
def join_devices(config: TrainerConfig) -> Iterator[Devices]:
    """Choose the device; under torchrun, also join the other ranks, and leave them at the end.

    Raises:
        ConfigError: trainer.device=cuda without a CUDA device, or a batch size that is not a
            multiple of the ranks.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    check_ranks(config, world_size)
    device = _choose_device(config.device, local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    _set_determinism(config.deterministic)
    if world_size > 1:
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=PEER_TIMEOUT)
    yield Devices(
        device,
        _autocast_dtype(config.precision, device),
        int(os.environ.get("RANK", "0")),
        local_rank,
        world_size,
        _cpu_group() if world_size > 1 else None,
    )
    leave_ranks()


def leave_ranks() -> None:
    """Leave the other ranks once all are ready: one that leaves early closes their connections."""
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


def _cpu_group() -> dist.ProcessGroup:
    group = dist.new_group(backend="gloo", timeout=PEER_TIMEOUT)
    assert isinstance(group, dist.ProcessGroup)
    return group


def _choose_device(wanted: str, local_rank: int) -> torch.device:
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise ConfigError(
            "trainer.device",
            wanted,
            f"each rank needs its own CUDA device; this is local rank {local_rank}, and this host "
            f"has {torch.cuda.device_count()}; lower trainer.nproc_per_host, or set "
            "trainer.device=cpu",
        )
    return torch.device("cuda", local_rank)


def _autocast_dtype(precision: str, device: torch.device) -> torch.dtype | None:
    if precision == "auto":
        # GPUs older than Ampere only emulate bf16, slower than fp32.
        has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        precision = "bf16" if has_bf16 else "fp32"
    return torch.bfloat16 if precision == "bf16" else None


def _set_determinism(deterministic: bool) -> None:
    torch.backends.cudnn.benchmark = not deterministic
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
