"""The model as a graph of torch's operators, in which batch normalization costs nothing.

In a model that no longer trains, a normalization multiplies each channel by a constant and adds
one: the convolution before it can do both, as in Jacob et al., "Quantization and Training of Neural
Networks for Efficient Integer-Arithmetic-Only Inference" (CVPR 2018), section 3.2. The answers
stay, within float rounding.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from operator import attrgetter
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node
from torch.nn.utils.fusion import fuse_conv_bn_weights

from entry_point.model_folder import Answers, Model, exported

logger = logging.getLogger(__name__)


def as_program(model: Model) -> Model:
    """The model as a rewritten graph. A model that torch.export cannot trace stays as it is."""
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
    return replace(model, answers=program)


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
