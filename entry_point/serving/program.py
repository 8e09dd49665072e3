"""The model as a graph of torch's operators, rewritten to compute less.

- Batch normalization is folded into the convolution before it. In a model that no longer trains, it
  multiplies each channel by a constant and adds one, as in Jacob et al., "Quantization and Training
  of Neural Networks for Efficient Integer-Arithmetic-Only Inference" (CVPR 2018), section 3.2.
- On a CPU, weights of convolutions are stored in the layout that it computes with. oneDNN, which
  computes torch's convolutions, reorders each weight to blocks at every call, a quarter of the time
  of a ResNet-18 on one image. Here that is done once, with the operators by which torch.compile
  freezes a program.

The answers stay, within float rounding.
"""

from __future__ import annotations

import logging
import platform
from dataclasses import replace
from operator import attrgetter
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.nn.utils.fusion import fuse_conv_bn_weights

from entry_point.model_folder import Answers, Model, exported

logger = logging.getLogger(__name__)


def as_program(model: Model, dtype: torch.dtype) -> Model:
    """The model as a rewritten graph, to be called under autocast to `dtype` if that is bfloat16.

    A model that torch.export cannot trace stays as it is.
    """
    try:
        program = exported(cast(Answers, model.answers), model.image_size).module()
    except Exception as error:  # torch.export raises errors of many types
        reason = str(error).partition("\n")[0] or type(error).__name__
        logger.info("the model runs as it was written; torch.export cannot trace it: %s", reason)
        return model
    # torch.export records a check of the type that each conversion gets, here float32.
    for node in program.graph.find_nodes(
        op="call_function", target=torch.ops.aten._assert_tensor_metadata.default
    ):
        program.graph.erase_node(node)
    fold_batch_norms(program)
    if model.device.type == "cpu" and can_pack(dtype):
        pack_convolutions(program, dtype)
    return replace(model, answers=program)


# -- batch normalization


_CONVOLUTIONS = (
    torch.ops.aten.conv1d.default,
    torch.ops.aten.conv2d.default,
    torch.ops.aten.conv3d.default,
)
_NORM = torch.ops.aten.batch_norm.default


def fold_batch_norms(program: GraphModule) -> None:
    """Fold every normalization that directly follows a convolution of fixed weights."""
    folded = 0
    for norm in program.graph.find_nodes(op="call_function", target=_NORM):
        convolution = norm.args[0]
        if _can_fold(norm, convolution):
            _fold(program, norm, convolution, folded)
            folded += 1
    program.graph.eliminate_dead_code()
    program.recompile()


def _can_fold(norm: Node, convolution: Any) -> bool:
    _, *parameters, is_training, _, _, _ = norm.args
    return (
        not is_training
        and isinstance(convolution, Node)
        and convolution.target in _CONVOLUTIONS
        and len(convolution.users) == 1
        and all(_is_fixed(value) for value in (*parameters, *convolution.args[1:3]))
    )


def _is_fixed(value: Any) -> bool:
    return value is None or (isinstance(value, Node) and value.op == "get_attr")


def _fold(program: GraphModule, norm: Node, convolution: Node, number: int) -> None:
    def tensor(node: Any) -> Any:
        return None if node is None else attrgetter(node.target)(program)

    weight, bias = (tensor(node) for node in (*convolution.args, None)[1:3])
    scale, shift, mean, variance = (tensor(node) for node in norm.args[1:5])
    epsilon = cast(float, norm.args[7])
    fused = fuse_conv_bn_weights(weight, bias, mean, variance, epsilon, scale, shift)
    graph, nodes = program.graph, []
    for name, parameter in zip(("weight", "bias"), fused, strict=True):
        program.register_parameter(f"_folded_{number}_{name}", parameter)
        with graph.inserting_before(convolution):
            nodes.append(graph.get_attr(f"_folded_{number}_{name}"))
    convolution.args = (convolution.args[0], *nodes, *convolution.args[3:])
    norm.replace_all_uses_with(convolution)
    graph.erase_node(norm)


# -- the layout of weights


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
