"""Weights of convolutions in the layout that the CPU computes with.

oneDNN, which computes torch's convolutions, reorders each weight to blocks at every call, a quarter
of the time of a ResNet-18 on one image. Here that is done once, with the operators by which
torch.compile freezes a program. The answers stay, within float rounding.
"""

from __future__ import annotations

import platform
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

_CONV = torch.ops.aten.conv2d.default
_DEFAULTS: tuple[Any, ...] = (None, 1, 0, 1, 1)
"""Of conv2d's arguments after the weight: bias, stride, padding, dilation, groups."""


def can_pack(dtype: torch.dtype) -> bool:
    """Whether torch computes convolutions in `dtype` with oneDNN's own kernels, those for x86."""
    if not torch.backends.mkldnn.is_available() or platform.machine() not in ("x86_64", "AMD64"):
        return False
    return dtype == torch.float32 or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def pack_convolutions(program: GraphModule, dtype: torch.dtype) -> None:
    """Pack the weights of all 2-D convolutions of fixed float32 weights, which compute in `dtype`.

    bfloat16 is rounded to where autocast does it, which casts each weight at every call.
    """
    for number, convolution in enumerate(
        program.graph.find_nodes(op="call_function", target=_CONV)
    ):
        parameters = cast(tuple[Any, ...], convolution.args)[1:3]
        if all(_is_float32(program, node) for node in parameters if node is not None):
            with program.graph.inserting_before(convolution):
                _pack(program, convolution, dtype, number)
    program.graph.eliminate_dead_code()
    program.recompile()


def _is_float32(program: GraphModule, node: Node) -> bool:
    return node.op == "get_attr" and _values(program, node).dtype == torch.float32


def _values(program: GraphModule, node: Node) -> Tensor:
    return cast(Tensor, attrgetter(str(node.target))(program)).detach()


def _pack(program: GraphModule, convolution: Node, dtype: torch.dtype, number: int) -> None:
    image, weight, *rest = cast(tuple[Any, ...], convolution.args)
    bias, stride, padding, dilation, groups = (*rest, *_DEFAULTS[len(rest) :])
    geometry = [_pair(value) for value in (padding, stride, dilation)]

    def add(kind: str, values: Tensor) -> Node:
        program.register_buffer(f"_packed_{number}_{kind}", values, persistent=False)
        return program.graph.get_attr(f"_packed_{number}_{kind}")

    # Not at the top: builds of torch without oneDNN lack these operators.
    operators, values = torch.ops.mkldnn, _values(program, weight).to(dtype)
    packed = add("weight", operators._reorder_convolution_weight(values, *geometry, groups))
    if dtype != torch.float32:
        image = program.graph.call_function(torch.ops.aten.to.dtype, (image, dtype))
        bias = None if bias is None else add("bias", _values(program, bias).to(dtype))
    arguments = (image, packed, bias, *geometry, groups, "none", [], "")
    operator = operators._convolution_pointwise.default
    convolution.replace_all_uses_with(program.graph.call_function(operator, arguments))
    program.graph.erase_node(convolution)


def _pair(value: Any) -> list[int]:
    """torch takes a number for both dimensions."""
    sizes = [value] if isinstance(value, int) else list(value)
    return sizes * 2 if len(sizes) == 1 else sizes
