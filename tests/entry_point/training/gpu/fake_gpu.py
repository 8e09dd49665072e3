"""Tensors and streams of a GPU that does not exist, to find what would wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

CUDA = torch.device("cuda", 0)
_COPIES = ("aten._to_copy.", "aten.copy_.", "prims.device_put.")


class FakeGpu(FakeTensorMode):
    """While it is entered, tensors on CUDA have shapes and types but no values; others are real.

    Reading a value of a tensor on CUDA raises torch's DataDependentOutputException, and an operator
    whose result has a shape that depends on values DynamicOutputShapeException.
    """

    def __init__(self) -> None:
        super().__init__(allow_non_fake_inputs=True)
        self.waits: list[str] = []
        """Operators that copied between the devices, and would have waited for the GPU."""
        self.model: nn.Module | None = None
        """What `backward` gives gradients to."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        devices = [leaf for leaf in leaves if isinstance(leaf, torch.device)]
        if all(each.type != "cuda" for each in (*devices, *(t.device for t in tensors))):
            return func(*args, **kwargs)
        # A fused optimizer changes weights in place; torch has no such kernel without values.
        if "_fused_" in str(func):
            return None
        made = super().__torch_dispatch__(func, types, args, kwargs)
        copies = str(func).startswith(_COPIES)
        # A number from the CPU is an argument of the kernel; a copy of it is not.
        crossing = [t for t in (*tensors, made) if isinstance(t, torch.Tensor)]
        crossing = [t for t in crossing if copies or t.dim() or t is made]
        if len({t.device.type for t in crossing}) > 1 and not _is_asynchronous(args, kwargs):
            self.waits.append(str(func))
        return made


def _is_asynchronous(args: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a copy was told not to wait."""
    return any(given is True for given in (*args, kwargs.get("non_blocking")))


@contextmanager
def fake_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGpu]:
    """Enter a FakeGpu. Modules can be moved to it; `backward` makes gradients of 0."""
    plain = nn.Module.to

    def to(module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        if not args or torch.device(args[0]).type != "cuda":
            return plain(module, *args, **kwargs)
        for part in module.modules():
            for name, weights in part._parameters.items():
                if weights is not None:
                    moved = nn.Parameter(weights.detach().to(CUDA), weights.requires_grad)
                    part._parameters[name] = moved
            for name, buffer in part._buffers.items():
                part._buffers[name] = None if buffer is None else buffer.to(CUDA)
        return module

    gpu = FakeGpu()

    def backward(_loss: torch.Tensor) -> None:
        for weights in gpu.model.parameters() if gpu.model is not None else ():
            weights.grad = torch.zeros_like(weights)

    monkeypatch.setattr(nn.Module, "to", to)
    # The threads of the backward pass belong to devices, which torch asks the driver for.
    monkeypatch.setattr(torch.Tensor, "backward", backward)
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda _: None)
    with gpu:
        yield gpu


class FakeStreams:
    """The streams of a fake GPU; `install` replaces torch's."""

    def __init__(self) -> None:
        self.compute = self.current = FakeStream("compute")
        self._recorded: list[tuple[torch.Tensor, FakeStream]] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def record(tensor: torch.Tensor, stream: FakeStream) -> None:
            self._recorded.append((tensor, stream))

        monkeypatch.setattr(torch.cuda, "Stream", lambda _: FakeStream("other"))
        monkeypatch.setattr(torch.cuda, "stream", self._entered)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _: self.current)
        monkeypatch.setattr(torch.Tensor, "record_stream", record)

    @contextmanager
    def _entered(self, stream: FakeStream | None) -> Iterator[None]:
        before, self.current = self.current, stream or self.current
        yield
        self.current = before

    def users(self, tensor: torch.Tensor) -> list[str]:
        """The streams that the tensor's memory was kept for."""
        return [stream.name for recorded, stream in self._recorded if recorded is tensor]


class FakeStream:
    """A torch.cuda.Stream."""

    device = CUDA

    def __init__(self, name: str) -> None:
        self.name = name
        self.awaited: list[str] = []
        """The streams that this one waited for."""

    def wait_stream(self, other: FakeStream) -> None:
        self.awaited.append(other.name)
