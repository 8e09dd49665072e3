"""The device and precision of this process, its way to the host, and the other ranks."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import FileStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _abort_process_group, _get_default_store
from torch.utils._pytree import tree_leaves, tree_map_only

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import TrainerConfig, check_ranks
from entry_point.job.cores import usable_cores
from entry_point.job.hosts import has_gpus
from entry_point.job.ranks import RankWatch, Supervisor

# How long until all hosts have started their ranks.
RENDEZVOUS_TIMEOUT = timedelta(minutes=15)
# How long until a peer that vanished without closing its connections is noticed.
PEER_TIMEOUT = timedelta(minutes=10)
# How long the other ranks wait for the first one's results.
RESULTS_TIMEOUT = timedelta(days=1)
_PCI = Path("/sys/bus/pci/devices")
_MOST_STEPS_AHEAD = 2
_BY_HAND = Supervisor()


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
    watch: RankWatch | None = None
    supervisor: Supervisor = _BY_HAND

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    @property
    def precision(self) -> str:
        if self.autocast_dtype is not None:
            return "bf16" if self.autocast_dtype is torch.bfloat16 else "fp16"
        return "tf32" if torch.backends.cudnn.allow_tf32 and self.on_gpu else "fp32"

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def input_dtype(self) -> torch.dtype:
        """The type in which the model computes, and thus gets its input."""
        return self.autocast_dtype or torch.float32

    def autocast(self) -> torch.autocast:
        """Autocast to bf16 or fp16 if that is the job's precision, else a no-op."""
        return torch.autocast(
            self.device.type,
            dtype=self.autocast_dtype or torch.bfloat16,
            enabled=self.autocast_dtype is not None,
        )

    def arrive(self) -> None:
        """Count an exchange of all ranks that this one has reached, for the watch."""
        if self.watch is not None:
            self.watch.arrive()

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over all ranks, in place."""
        self.arrive()
        if self.world_size > 1:
            dist.all_reduce(values)
        return values

    def gather(self, value: Any) -> list[Any]:
        """Returns all ranks' values in rank order, on every rank."""
        if self.cpu_group is None:
            return [value]
        self.arrive()
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.cpu_group)
        return values

    def from_first(self, value: Any) -> Any:
        """Returns the first rank's value, on every rank; its tensors are dense and on the CPU.

        They are received one by one where they stay: pickled with the rest, they would take three
        times their size.
        """
        if self.cpu_group is None:
            return value
        self.arrive()
        outline = [tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), value)]
        dist.broadcast_object_list(outline, src=0, group=self.cpu_group)
        if not self.is_first:
            value = tree_map_only(
                torch.Tensor, lambda tensor: torch.empty_like(tensor, device="cpu"), outline[0]
            )
        for leaf in tree_leaves(value):
            if isinstance(leaf, torch.Tensor) and leaf.nbytes:
                # As bytes in their order in memory, since gloo does not send every type.
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
def join_devices(
    config: TrainerConfig, accumulate: int = 1, supervisor: Supervisor = _BY_HAND
) -> Iterator[Devices]:
    """Choose the device; of several ranks, also join the others, and leave them at the end.

    `accumulate` is the number of pieces of a rank's share of a batch.

    Raises:
        ConfigError: there is no CUDA device, or one that torch cannot use, unless trainer.device
            allows the CPU; or a batch size that the ranks cannot share in equal pieces.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    rendezvous = None
    if supervisor.folder is None:  # started by hand, or by a torchrun of the user's
        rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    else:
        rendezvous = _Rendezvous(supervisor.folder, local_rank)
        rank, world_size = rendezvous.place()
        os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size))  # for code of the user's
    check_ranks(config, world_size, accumulate)
    limit_threads()
    device = _choose_device(config.device, local_rank)
    if device.type == "cuda":
        torch.cuda.set_device(device)
        stay_near(device)
    torch.backends.cudnn.benchmark = not config.deterministic
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    autocast_dtype = _set_precision(config.precision, device)
    with _all_ranks(device, rank, world_size, rendezvous) as (cpu_group, watch):
        places = rank, local_rank, world_size
        yield Devices(device, autocast_dtype, *places, cpu_group, watch, supervisor)


class _Rendezvous:
    """Where the ranks that supervisors have started learn their number, and meet."""

    def __init__(self, folder: Path, local_rank: int) -> None:
        """`folder` is shared by the ranks of this host."""
        self._local_rank = local_rank
        self._ranks = int(os.environ["LOCAL_WORLD_SIZE"])
        self._host, self._hosts = int(os.environ["GROUP_RANK"]), int(os.environ["GROUP_WORLD_SIZE"])
        self._of_host = FileStore(str(folder / "ranks"), self._ranks)
        self._of_host.set_timeout(RENDEZVOUS_TIMEOUT)

    @cached_property
    def store(self) -> Store:
        """For all ranks: of one host without a port, or a name that would have to resolve."""
        if self._hosts == 1:
            return self._of_host
        return TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=self._host == self._local_rank == 0,
            wait_for_workers=False,
            timeout=RENDEZVOUS_TIMEOUT,
        )

    def place(self) -> tuple[int, int]:
        """This rank, and the number of ranks. Raises ConfigError if hosts have different numbers.

        One rank of each host asks the others. If all did, one could fail, and have its host's ranks
        killed, while the first host still waits for them.
        """
        if self._local_rank == 0:
            counts = self._count_ranks()
            if len(set(counts)) > 1:
                raise ConfigError(
                    "trainer.nproc_per_host",
                    message=f"the hosts start {', '.join(map(str, counts))} ranks, in their order; "
                    "every host must start as many: use machines of one type, or set "
                    f"trainer.nproc_per_host={min(counts)} on all of them",
                )
            self._of_host.set("hosts are equal", "")
        self._of_host.wait(["hosts are equal"])
        return self._host * self._ranks + self._local_rank, self._hosts * self._ranks

    def _count_ranks(self) -> list[int]:
        """Returns the number of ranks of each host."""
        hosts = range(self._hosts)
        self.store.set(f"ranks of host {self._host}", str(self._ranks))
        counts = [int(self.store.get(f"ranks of host {host}")) for host in hosts]
        self.store.add(f"host {self._host} has counted", 1)
        if self._host == 0:
            # It serves the store: if it ended now, the others could not count.
            self.store.wait([f"host {host} has counted" for host in hosts])
        return counts


def _leave_ranks(group: dist.ProcessGroup | None) -> None:
    """Leave the other ranks (`Devices.cpu_group`) once all are ready.

    One that leaves early closes their connections. A rank that dies meanwhile ends the wait.
    """
    if group is not None:
        timeout = PEER_TIMEOUT if dist.get_rank() == 0 else RESULTS_TIMEOUT
        dist.monitored_barrier(group, timeout)
        dist.destroy_process_group()


@contextmanager
def _all_ranks(
    device: torch.device, rank: int, world_size: int, rendezvous: _Rendezvous | None
) -> Iterator[tuple[dist.ProcessGroup | None, RankWatch | None]]:
    """Join the other ranks. After an error, the others learn of it at once."""
    if world_size == 1:
        yield None, None
        return
    on_gpu = device.type == "cuda"
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        timeout=PEER_TIMEOUT,
        rank=rank,
        world_size=world_size,
        store=rendezvous.store if rendezvous else None,
        # Has the ranks connect now, and keeps barriers off GPU 0.
        device_id=device if on_gpu else None,
    )
    try:
        group = dist.new_group(backend="gloo", timeout=PEER_TIMEOUT)
        assert isinstance(group, dist.ProcessGroup)
        with closing(RankWatch(_get_default_store(), rank, world_size)) as watch:
            yield group, watch
            _leave_ranks(group)
    except BaseException:
        # Without it, NCCL may keep this process, and thus the others, until PEER_TIMEOUT.
        _abort_process_group()
        raise


def limit_threads() -> None:
    """Give torch no more threads than a container's quota of CPU time allows: with more, all of
    them stand still once it is used up."""
    if "OMP_NUM_THREADS" not in os.environ and torch.get_num_threads() > usable_cores():
        torch.set_num_threads(usable_cores())


def _choose_device(wanted: str, local_rank: int) -> torch.device:
    if wanted == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        if wanted == "auto" and not has_gpus():
            return torch.device("cpu")
        raise ConfigError("trainer.device", wanted, f"{_why_unusable()}, or set trainer.device=cpu")
    if local_rank >= torch.cuda.device_count():
        raise ConfigError(
            "trainer.device",
            wanted,
            f"each rank needs its own CUDA device; this is local rank {local_rank}, and this host "
            f"has {torch.cuda.device_count()}; lower trainer.nproc_per_host, or set "
            "trainer.device=cpu",
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
    """Set whether products use TF32; returns the type of autocast, None for none.

    By default, torch uses TF32 in convolutions but not in matrix products.
    """
    wanted = precision == "tf32"
    if wanted and device.type != "cuda":
        raise ConfigError("trainer.precision", precision, "needs a GPU; use fp32 on a CPU")
    torch.backends.cudnn.allow_tf32 = wanted
    torch.set_float32_matmul_precision("high" if wanted else "highest")
    if precision == "auto":
        # GPUs older than Ampere only emulate bf16, slower than fp32.
        has_bf16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        precision = "bf16" if has_bf16 else "fp32"
    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)


def stay_near(device: torch.device) -> None:
    """Let this thread, and all that it starts, run on the cores of the GPU's node only.

    Batches are then written into memory that the GPU reaches without crossing to another socket.
    """
    if device.type == "cuda" and hasattr(os, "sched_setaffinity"):
        allowed = os.sched_getaffinity(0)
        near = allowed & _cores_near(device)
        if near and near != allowed:
            os.sched_setaffinity(0, near)


def _cores_near(device: torch.device) -> set[int]:
    """Returns the cores of the GPU's node; none if they are not known."""
    gpu: Any = torch.cuda.get_device_properties(device)  # torch's stub lacks the address
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
        """All work of a step has been launched; wait for the step before the previous one."""
        if self._device.type == "cuda":
            self._steps.append(_event())
            if len(self._steps) > _MOST_STEPS_AHEAD:
                self._steps.popleft().synchronize()


class HostCopy:
    """A tensor on its way to the CPU. On a CPU, the tensor itself."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._arrived: torch.cuda.Event | None = None
        self._copy = tensor.detach()
        if tensor.device.type == "cuda":
            self._copy = torch.empty_like(self._copy, device="cpu", pin_memory=True)
            self._copy.copy_(tensor.detach(), non_blocking=True)
            self._arrived = _event()

    def wait(self) -> torch.Tensor:
        """Returns the tensor on the CPU, once the device has computed it."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._copy


def _event() -> torch.cuda.Event:
    """Now, on the current stream. By default, waiting for an event keeps a core busy."""
    event = torch.cuda.Event(blocking=True)
    event.record()
    return event
