"""Serving in bfloat16: autocast around a program that was exported in float32."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import cast

import torch
from torch.fx import GraphModule

from entry_point.inference import Model

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""What convolutions compute in."""


def use_precision(model: Model, precision: str) -> Callable[[], AbstractContextManager[object]]:
    """Prepare `model` for `precision` (fp32 or bf16); returns the context to call it in."""
    if precision == "fp32":
        return nullcontext
    # torch.export records a check of the type that each conversion gets, here float32.
    program = cast(GraphModule, model.program)
    for node in list(program.graph.nodes):
        if node.target is torch.ops.aten._assert_tensor_metadata.default:
            program.graph.erase_node(node)
    program.recompile()
    return partial(torch.autocast, model.device.type, torch.bfloat16)
