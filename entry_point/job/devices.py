"""The device and precision of this process, copies between device and host, and the other ranks."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _abort_process_group
from torch.utils._pytree import tree_leaves, tree_map_only

from entry_point.job.cores import usable_cores
from entry_point.job.gpus import has_gpus
from entry_point.job.program import UserError

# Until all ranks have started, and until a rank that vanished without closing its connections is
# noticed.
PEER_TIMEOUT = timedelta(minutes=15)
# How long the other ranks wait for the first one's results.
RESULTS_TIMEOUT = timedelta(days=1)
_PCI = Path("/sys/bus/pci/devices")
_MOST_STEPS_AHEAD = 2


class Wanted(Protocol):
    """The settings of `trainer` that choose a device and how it computes."""

    device: Any
    precision: Any
    deterministic: bool


@dataclass(frozen=True)
class Devices:
    """This process's device and rank. One process drives one device."""

    device: torch.device
    autocast_dtype: torch.dtype | None
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    cpu_group: dist.ProcessGroup | None = None
    """All ranks on the CPU, to exchange objects, and votes that must not wait for the device."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def precision(self) -> str:
        if self.autocast_dtype is not None:
            return "bf16" if self.autocast_dtype is torch.bfloat16 else "fp16"
        has_tf32 = torch.backends.cudnn.allow_tf32 and self.device.type == "cuda"
        return "tf32" if has_tf32 else "fp32"

    @property
    def input_dtype(self) -> torch.dtype:
        """The dtype in which the model computes and gets its input."""
        return self.autocast_dtype or torch.float32

    def autocast(self) -> torch.autocast:
        """Autocast to bf16 or fp16 if that is the job's precision, else a no-op."""
        return torch.autocast(
            self.device.type,
            dtype=self.autocast_dtype or torch.bfloat16,
            enabled=self.autocast_dtype is not None,
        )

    def gather(self, value: Any) -> list[Any]:
        """Returns all ranks' values in rank order, on every rank."""
        if self.cpu_group is None:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.cpu_group)
        return values

    def from_first(self, value: Any) -> Any:
        """Returns the first rank's value, on every rank; its tensors are dense and on the CPU.

        Tensors are received one by one into their own memory: pickled, they would take three times
        their size.
        """
        if self.cpu_group is None:
            return value
        outline = [tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), value)]
        dist.broadcast_object_list(outline, src=0, group=self.cpu_group)
        if not self.is_first:
            value = tree_map_only(
                torch.Tensor, lambda tensor: torch.empty_like(tensor, device="cpu"), outline[0]
            )
        for leaf in tree_leaves(value):
            if isinstance(leaf, torch.Tensor) and leaf.nbytes:
                # As bytes in memory order, because gloo does not send all dtypes.
                in_memory = leaf.as_strided((leaf.numel(),), (1,)).view(torch.uint8)
                dist.broadcast(in_memory, src=0, group=self.cpu_group)
        return value

    def describe(self) -> str:
        name = (
            torch.cuda.get_device_name(self.device)
            if self.device.type == "cuda"
            else f"CPU, {torch.get_num_threads()} threads"
        )
        return f"{self.world_size} x {name}, {self.precision}"


@contextmanager
def join_devices(wanted: Wanted) -> Iterator[Devices]:
    """Choose the device. With several ranks, by torchrun's variables, also join the others, and
    leave them at the end.

    Raises UserError if there is no CUDA device that torch can use, unless trainer.device allows the
    CPU.
    """
    rank, local_rank = (int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK"))
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    limit_threads()
    device = _choose_device(wanted.device, local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        bind_near(device)
    torch.backends.cudnn.benchmark = not wanted.deterministic
    if wanted.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    autocast_dtype = _set_precision(wanted.precision, device)
    with _all_ranks(device, world_size) as cpu_group:
        yield Devices(device, autocast_dtype, rank, local_rank, world_size, cpu_group)


@contextmanager
def _all_ranks(device: torch.device, world_size: int) -> Iterator[dist.ProcessGroup | None]:
    """Join the other ranks, and notify them at once of an error."""
    if world_size == 1:
        yield None
        return
    on_gpu = device.type == "cuda"
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        timeout=PEER_TIMEOUT,
        # The ranks connect now, and barriers do not use GPU 0.
        device_id=device if on_gpu else None,
    )
    try:
        group = dist.new_group(backend="gloo", timeout=PEER_TIMEOUT)
        assert isinstance(group, dist.ProcessGroup)
        yield group
        # A rank that left early would close the others' connections. One that dies ends their wait.
        is_first = dist.get_rank() == 0
        dist.monitored_barrier(group, PEER_TIMEOUT if is_first else RESULTS_TIMEOUT)
        dist.destroy_process_group()
    except BaseException:
        # Otherwise NCCL may block this process, and thus the others, until PEER_TIMEOUT.
        _abort_process_group()
        raise


def limit_threads() -> None:
    """Limit torch's threads to a container's quota of CPU time: with more, all of them stall once
    it is used up."""
    if "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > usable_cores():
        torch.set_num_threads(usable_cores())


def _choose_device(wanted: str, local_rank: int) -> torch.device:
    if wanted == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        if wanted == "auto" and not has_gpus():
            return torch.device("cpu")
        why = f"{_why_unusable()}, or set trainer.device=cpu"
        raise UserError(f"trainer.device={wanted}: {why}")
    if local_rank >= torch.cuda.device_count():
        raise UserError(
            f"trainer.device={wanted}: each rank needs its own CUDA device; this is local rank "
            f"{local_rank}, and this host has {torch.cuda.device_count()}; lower "
            "trainer.nproc_per_host, or set trainer.device=cpu"
        )
    return torch.device("cuda", local_rank)


def _why_unusable() -> str:
    if not has_gpus():
        return "this host has no NVIDIA GPU; choose one that has"
    try:
        torch.cuda.init()
        reason = "it finds no device"
    except (RuntimeError, AssertionError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
    built = f"is built for CUDA {torch.version.cuda}" if torch.version.cuda else "has no CUDA"
    return (
        f"torch cannot use the GPUs of this host ({reason}); torch {torch.__version__} {built}; "
        "fix the driver or the image"
    )


def _set_precision(precision: str, device: torch.device) -> torch.dtype | None:
    """Set whether products use TF32; returns the dtype of autocast, or None.

    By default, torch uses TF32 in convolutions but not in matrix products.
    """
    wanted = precision == "tf32"
    if wanted and device.type != "cuda":
        raise UserError(f"trainer.precision={precision}: needs a GPU; use fp32 on a CPU")
    torch.backends.cudnn.allow_tf32 = wanted
    torch.set_float32_matmul_precision("high" if wanted else "highest")
    if precision == "auto":
        # GPUs older than Ampere only emulate bf16, slower than fp32.
        has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        precision = "bf16" if has_bf16 else "fp32"
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)


def bind_near(device: torch.device) -> None:
    """Bind this thread, and all that it starts, to the cores of the GPU's NUMA node.

    Batches are then written into memory that the GPU reaches without crossing to another socket.
    """
    if device.type == "cuda" and hasattr(os, "sched_setaffinity"):
        allowed = os.sched_getaffinity(0)
        near = allowed & _cores_near(device)
        if near and near != allowed:
            os.sched_setaffinity(0, near)


def _cores_near(device: torch.device) -> set[int]:
    """Returns the cores of the GPU's NUMA node; an empty set if unknown."""
    gpu: Any = torch.cuda.get_device_properties(device)  # torch's stub lacks the PCI address
    address = f"{gpu.pci_domain_id:04x}:{gpu.pci_bus_id:02x}:{gpu.pci_device_id:02x}.0"
    try:
        text = (_PCI / address / "local_cpulist").read_text().strip()
    except OSError:
        return set()
    cores: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return cores


class RunAhead:
    """Keeps the host at most two steps ahead of a GPU: each step ahead holds a batch on the GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._steps: deque[torch.cuda.Event] = deque()

    def wait(self) -> None:
        """Call it after launching a step: waits for the step before the previous one."""
        if self._device.type == "cuda":
            self._steps.append(_event())
            if len(self._steps) > _MOST_STEPS_AHEAD:
                self._steps.popleft().synchronize()


class HostCopy:
    """An asynchronous copy of a tensor to the CPU. On a CPU, the tensor itself."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        self._copy = tensor.detach()
        if tensor.device.type == "cuda":
            self._copy = torch.empty_like(self._copy, device="cpu", pin_memory=True)
            self._copy.copy_(tensor.detach(), non_blocking=True)
            self._arrived = _event()

    def wait(self) -> torch.Tensor:
        """Wait until the device has computed the tensor; returns it on the CPU."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._copy


def _event() -> torch.cuda.Event:
    """Record an event on the current stream. By default, waiting for one keeps a core busy."""
    event = torch.cuda.Event(blocking=True)
    event.record()
    return event
