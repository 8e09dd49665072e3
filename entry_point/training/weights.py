"""Fits the weights in a file, of this or another program, to a model.

Files differ in what is around the weights (`model`, `state_dict`, `teacher`, beside an optimizer)
and in what is before their names (`module.`, `net.`, `backbone.`). Nothing here knows these words:
every tensor of a file gets a dotted name, and the weights are where most names end as the model's.
"""

from __future__ import annotations

import logging
import math
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models import MNASNet

from entry_point.config.config_errors import ConfigError
from entry_point.training.checkpoints import (
    DamagedFileError,
    load_safetensors,
    load_state,
    load_tensors,
)
from entry_point.training.class_rows import describe_match, match_rows, read_class_names, some
from entry_point.training.dense_models import PyramidHead
from entry_point.training.tensor_pickle import Skipped
from entry_point.training.weight_files import SAFETENSORS

logger = logging.getLogger(__name__)

_STATE_DICT = "a state dict, as torch.save(model.state_dict(), FILE) writes it"
_DEPTH = 4
"""Of the dicts in a file."""
Named = tuple[str, Tensor]
Fit = tuple[int, int]
"""How many weights have the shape, and how many the name, of one of the model's."""
# DenseNet's published weights say norm.1 where the model says norm1.
_DENSE_LAYER = re.compile(r"(?<=\.denselayer)(\d+\.(?:norm|conv))\.(?=[12]\.)")
_COMPILED = "_orig_mod."
"""What torch.compile puts before the names of what it compiles."""
_AUXILIARY = ("aux1.", "aux2.", "AuxLogits.", "aux_classifier.")
_AVERAGED = re.compile(r"(?<![a-z])(ema|swa)(?![a-z])|averag|momentum|student", re.IGNORECASE)
"""Names of what is not taken if others fit as well: averages, and a student beside its teacher."""
_POSITIONS = re.compile(r"pos(ition(al)?)?_?emb")
_MOST_TOKENS = 8
"""Before the patches of a position embedding: class, distillation and register tokens."""


def load_weights(
    model: nn.Module,
    path: Path,
    num_classes: int,
    names: Sequence[str],
    build_larger: Callable[[], nn.Module],
    build_classifier: Callable[[], nn.Module] | None = None,
) -> None:
    """Load weights. All must match but the head: one of another size, or that the file lacks,
    stays as initialized, and rows for the outputs `names` are found by these names if the file
    comes with others. Position embeddings of another image size are resampled.

    `build_larger` makes the same model for one more output; `build_classifier` makes what the
    encoder of a PyramidHead is part of.
    """
    tensors, content = _read(path)
    own = model.state_dict()
    if isinstance(model, PyramidHead):
        encoder = cast(nn.Module, model.encoder.model)
        if _best_fit(tensors, encoder.state_dict()) > _best_fit(tensors, own):
            assert build_classifier is not None
            _load_encoder(encoder, build_classifier, tensors, path)
            return
    state, notes = _state_dict(tensors, own)
    notes += _resample_positions(state, own)
    known, by_name, new = read_class_names(path, content), list[str](), list[str]()
    if known not in (None, [*names]) and len(names) == num_classes:
        by_name, new = match_rows(state, own, build_larger().state_dict(), known, names)
    head = [key for key in own if key in state and own[key].shape != state[key].shape]
    for key in head:
        needed, found = own[key].shape, state[key].shape
        if (needed[:1], needed[1:]) != ((num_classes,), found[1:]):
            raise _other_shape(path, key, found, needed)
    for key in head:
        del state[key]
    missing, unexpected = _load(model, state)
    if left := [key for key in missing if key not in head]:
        larger = build_larger().state_dict()
        if all(larger[key].shape != own[key].shape for key in left):  # an encoder's file
            head, left = [key for key in own if key in missing], []
            inside = tuple(f"{key.rpartition('.')[0]}." for key in head)
            unexpected = [key for key in unexpected if not key.startswith(inside)]
    if left or unexpected:
        message = f"does not fit the model; missing {left[:3]}, unexpected {unexpected[:3]}"
        raise ConfigError("model.weights", path, message)
    new += head
    line = f"weights from {path}" + (f", except {', '.join(new)}" if new else "")
    if by_name:
        line += f"; {', '.join(by_name)}: {describe_match(known or (), names)}"
    elif known is None and not new and len(names) == num_classes:
        line += f", which name no classes: they are taken to be {some(names)}, in this order"
    logger.info("%s", "; ".join([line, *notes]))


def _load_encoder(
    encoder: nn.Module,
    build_classifier: Callable[[], nn.Module],
    tensors: Mapping[str, Tensor],
    path: Path,
) -> None:
    """Load a classifier's weights, but for what the encoder leaves out of it: its head."""
    own = encoder.state_dict()
    state, notes = _state_dict(tensors, own)
    notes += _resample_positions(state, own)
    for key, weight in own.items():
        if key in state and state[key].shape != weight.shape:
            raise _other_shape(path, key, state[key].shape, weight.shape)
    missing, unexpected = _load(encoder, state)
    left_out = [key for key in build_classifier().state_dict() if key not in own]
    inside = tuple(f"{key.rpartition('.')[0]}." for key in left_out)
    foreign = [key for key in unexpected if key not in left_out and not key.startswith(inside)]
    if missing or foreign:
        message = f"does not fit the encoder; missing {missing[:3]}, unexpected {foreign[:3]}"
        raise ConfigError("model.weights", path, message)
    logger.info("%s", "; ".join([f"the encoder's weights from {path}", *notes]))


def _load(model: nn.Module, state: Mapping[str, Tensor]) -> tuple[list[str], list[str]]:
    """Load weights of any version; returns what is missing and what is unexpected.

    Without a version, modules also take their oldest names. MNASNet alone takes nothing then: its
    published weights have the names of its present version.
    """
    versioned = OrderedDict(state)
    versioned._metadata = {  # type: ignore[attr-defined]
        name: {"version": module._version}
        for name, module in model.named_modules()
        if isinstance(module, MNASNet)
    }
    return load_state(model, versioned, strict=False)


def _other_shape(path: Path, key: str, found: Sequence[int], needed: Sequence[int]) -> ConfigError:
    size = "; use the data.image_size of the weights" if "pos" in key else ""
    message = (
        f"holds another model's weights; {key} has shape {tuple(found)}, and the one of "
        f"model.name needs {tuple(needed)}{size}"
    )
    return ConfigError("model.weights", path, message)


# -- the tensors in a file


def _read(path: Path) -> tuple[dict[str, Tensor], Any]:
    """Returns the tensors in a file by dotted names, and all its content. Raises ConfigError."""
    is_safetensors = path.suffix == SAFETENSORS
    try:
        content = (
            load_safetensors(path) if is_safetensors else load_tensors(path, skip_objects=True)
        )
    except DamagedFileError as error:
        kind = "a safetensors file" if is_safetensors else _STATE_DICT
        raise ConfigError("model.weights", path, f"must be {kind} ({error})") from error
    tensors = {
        _DENSE_LAYER.sub(r"\1", name.replace(_COMPILED, "")): tensor
        for name, tensor in _named_tensors(content)
    }
    if not tensors:
        inside = [content, *(content.values() if isinstance(content, dict) else ())]
        skipped = [type(each).__name__ for each in inside if isinstance(each, Skipped)]
        message = "must be a torch state dict: names and tensors"
        if skipped:
            message = f"must be {_STATE_DICT}, not a pickled {skipped[0]}"
        raise ConfigError("model.weights", path, message)
    return tensors, content


def _named_tensors(content: Any, prefix: str = "", depth: int = _DEPTH) -> Iterator[Named]:
    """Yields the tensors in nested dicts, by the dotted names that lead to them."""
    for key, value in content.items() if isinstance(content, dict) else ():
        if isinstance(key, str) and isinstance(value, Tensor):
            yield f"{prefix}{key}", value
        elif isinstance(key, str) and depth:
            yield from _named_tensors(value, f"{prefix}{key}.", depth - 1)


def _places(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> list[tuple[Fit, str]]:
    """Returns what precedes names of the model in names of `tensors`, with how many weights fit
    there."""
    shapes, names = Counter[str](), Counter[str]()
    for name, tensor in tensors.items():
        for start in [0, *(dot.end() for dot in re.finditer(r"\.", name))]:
            if (weight := own.get(name[start:])) is not None:
                names[name[:start]] += 1
                shapes[name[:start]] += weight.shape == tensor.shape
    return [((shapes[place], names[place]), place) for place in names]


def _best_fit(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> Fit:
    return max((fit for fit, _ in _places(tensors, own)), default=(0, 0))


def _state_dict(
    tensors: Mapping[str, Tensor], own: Mapping[str, Tensor]
) -> tuple[dict[str, Tensor], list[str]]:
    """Returns the weights among `tensors` that fit the model with the weights `own`, and notes for
    the log.

    Without those of auxiliary heads that the model lacks.
    """
    best, notes = _best_fit(tensors, own), list[str]()
    fitting = [place for fit, place in _places(tensors, own) if fit == best]
    # The first of the file, but for averages.
    place, *others = sorted(fitting, key=lambda each: bool(_AVERAGED.search(each))) or [""]
    if others:
        names = [each.strip(".") or "the top level" for each in (place, *others)]
        notes = [f"taken from {names[0]}, not from {', '.join(names[1:])}, which also fits"]
    state = {
        name.removeprefix(place): tensor
        for name, tensor in tensors.items()
        if name.startswith(place)
    }
    return {
        name: tensor
        for name, tensor in state.items()
        if name in own or not name.startswith(_AUXILIARY)
    }, notes


def _resample_positions(state: dict[str, Tensor], own: Mapping[str, Tensor]) -> list[str]:
    """Resamples position embeddings in `state` to the shapes in `own`; returns notes for the log.

    Those of square images: `(..., tokens + side * side, channels)`. As timm does it, bicubic with
    antialiasing; tokens before those of the patches stay as they are.
    """
    notes = []
    for name, weight in own.items():
        found = state.get(name)
        if found is None or found.shape == weight.shape or not _POSITIONS.search(name):
            continue
        if (*found.shape[:-2], found.shape[-1]) != (*weight.shape[:-2], weight.shape[-1]):
            continue
        for tokens in range(_MOST_TOKENS):
            old, new = (math.isqrt(max(0, each.shape[-2] - tokens)) for each in (found, weight))
            if (old**2 + tokens, new**2 + tokens) == (found.shape[-2], weight.shape[-2]):
                first, patches = found[..., :tokens, :], found[..., tokens:, :]
                grid = patches.float().reshape(1, old, old, -1).permute(0, 3, 1, 2)
                grid = functional.interpolate(grid, (new, new), mode="bicubic", antialias=True)
                patches = grid.permute(0, 2, 3, 1).reshape(*found.shape[:-2], new * new, -1)
                state[name] = torch.cat([first, patches.to(first.dtype)], dim=-2)
                notes.append(f"{name} is resampled from {old}x{old} to {new}x{new} patches")
                break
    return notes
