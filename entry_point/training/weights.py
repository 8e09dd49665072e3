"""Fits the weights in a file, of this or another program, to a model.

Files differ in what is around the weights (`model`, `state_dict`, beside an optimizer) and in what
is before their names (`module.`, `net.`, `backbone.`). Nothing here knows these words: every tensor
of a file gets a dotted name, and the weights have the prefix behind which most names are the
model's.
"""

from __future__ import annotations

import logging
import re
from argparse import Namespace
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn
from torch.serialization import safe_globals
from torchvision.models import MNASNet, VisionTransformer
from torchvision.models.vision_transformer import interpolate_embeddings

from entry_point.config.config_errors import ConfigError
from entry_point.training.checkpoints import (
    DamagedFileError,
    load_safetensors,
    load_state,
    load_tensors,
)
from entry_point.training.class_names import read_class_names, some
from entry_point.training.dense_models import PyramidHead
from entry_point.training.weight_files import SAFETENSORS

logger = logging.getLogger(__name__)

State = dict[str, Tensor]
_DEPTH = 4
"""Of the dicts in a file."""
# DenseNet's published weights say norm.1 where the model says norm1.
_DENSE_LAYER = re.compile(r"(?<=\.denselayer)(\d+\.(?:norm|conv))\.(?=[12]\.)")
_COMPILED = "_orig_mod."
"""What torch.compile puts before the names of what it compiles."""
_AUXILIARY = ("aux1.", "aux2.", "AuxLogits.", "aux_classifier.")
_REFUSED = "Weights only load failed"
_OBJECT = re.compile(r"GLOBAL (\S+)")
"""In torch's text about a pickle that holds more than tensors."""


def load_weights(
    model: nn.Module,
    path: Path,
    names: Sequence[str],
    build_larger: Callable[[], nn.Module],
    build_classifier: Callable[[], nn.Module],
) -> None:
    """Load the weights in `path`, or raise ConfigError if they do not fit.

    The head stays as initialized if the file has none of its size, or has one for other outputs
    than `names` or for another order of them; a log line says so. Position embeddings of another
    image size are resampled. A PyramidHead also takes the weights of a classifier for its encoder.

    `build_larger` makes the same model for one more output; `build_classifier` makes what the
    encoder of a PyramidHead is a part of.
    """
    tensors, content = _read(path)
    what = "weights"
    if isinstance(model, PyramidHead):
        encoder = cast(nn.Module, model.encoder.model)
        if _most_names(tensors, encoder) > _most_names(tensors, model):
            model, names, build_larger = encoder, (), build_classifier
            what = "the encoder's weights"
    state, notes = _state_dict(tensors, model)
    notes += _resample_positions(state, model)
    own, known = model.state_dict(), read_class_names(path, content)
    is_for_others = bool(names) and known not in (None, [*names])
    differing = _differing(state, own)
    # Only another model tells what depends on the outputs; it takes time to build.
    head = _head(own, build_larger()) if is_for_others or differing else set()
    new = [key for key in own if key in head]
    if is_for_others or not differing.isdisjoint(new):
        state = {key: tensor for key, tensor in state.items() if key not in head}
        reason = _describe_outputs(known or [], names) if is_for_others else "none of this size"
        notes.append(f"{', '.join(new)} start from scratch: the file has {reason}")
    elif known is None and names:
        notes.append(f"they name no classes and are taken to be for {some(names)}, in this order")
    _load(model, state, head, path)
    logger.info("%s", "; ".join([f"{what} from {path}", *notes]))


def _head(own: State, larger: nn.Module) -> set[str]:
    """Returns the names of weights that depend on the number of outputs, or that a model without
    outputs lacks."""
    return {
        key
        for key, tensor in larger.state_dict().items()
        if key not in own or own[key].shape != tensor.shape
    }


def _differing(state: State, own: State) -> set[str]:
    """Returns the names that only one of them has, or that have another shape."""
    found, needed = ({(key, tensor.shape) for key, tensor in s.items()} for s in (state, own))
    return {key for key, _ in found ^ needed}


def _describe_outputs(known: Sequence[str], names: Sequence[str]) -> str:
    if sorted(known) == sorted(names):
        return "the same classes in another order"
    return f"other classes, {some(known)}"


def _load(model: nn.Module, state: State, head: set[str], path: Path) -> None:
    """Load weights of any version. All but those of the head must fit; raises ConfigError.

    Without a version, modules also take their oldest names. MNASNet alone takes nothing then: its
    published weights have the names of its present version.
    """
    for key, tensor in model.state_dict().items():
        if key in state and state[key].shape != tensor.shape:
            size = "; use the data.image_size of the weights" if "pos" in key else ""
            message = (
                f"holds another model's weights; {key} has shape {tuple(state[key].shape)}, and "
                f"the one of model.name needs {tuple(tensor.shape)}{size}"
            )
            raise ConfigError("model.weights", path, message)
    versioned = OrderedDict(state)
    versioned._metadata = {  # type: ignore[attr-defined]
        name: {"version": module._version}
        for name, module in model.named_modules()
        if isinstance(module, MNASNet)
    }
    missing, unexpected = load_state(model, versioned, strict=False)
    missing = [key for key in missing if key not in head]
    # A projection of self-supervised training may be in the place of the head.
    modules = tuple(f"{key.rpartition('.')[0]}." for key in head)
    unexpected = [key for key in unexpected if key not in head and not key.startswith(modules)]
    if missing or unexpected:
        message = f"does not fit the model; missing {missing[:3]}, unexpected {unexpected[:3]}"
        raise ConfigError("model.weights", path, message)


# -- the tensors in a file


def _read(path: Path) -> tuple[State, Any]:
    """Returns the tensors in a file by dotted names, and all its content. Raises ConfigError."""
    must = "must be a state dict, as torch.save(model.state_dict(), FILE) writes it"
    try:
        if path.suffix == SAFETENSORS:
            must = "must be a safetensors file"
            content = load_safetensors(path)
        else:
            with safe_globals([Namespace]):  # the arguments of torchvision's and timm's programs
                content = load_tensors(path)
    except DamagedFileError as error:
        message = f"{must} ({error})"
        if _REFUSED in str(error):
            named = _OBJECT.search(str(error.__cause__))
            what = named[1] if named else "object"
            message = (
                f"holds a pickled {what}, and only tensors are read; if you trust the file, "
                "read it with torch.load(FILE, weights_only=False) where its code is installed, "
                "and save its state dict with torch.save(STATE_DICT, NEW_FILE)"
            )
        raise ConfigError("model.weights", path, message) from error
    tensors = {
        _DENSE_LAYER.sub(r"\1", name.replace(_COMPILED, "")): tensor
        for name, tensor in _named_tensors(content)
    }
    if not tensors:
        raise ConfigError("model.weights", path, f"{must}: it holds no named tensors")
    return tensors, content


def _named_tensors(
    content: Any, prefix: str = "", depth: int = _DEPTH
) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors in nested dicts, by the dotted names that lead to them."""
    for key, value in content.items() if isinstance(content, dict) else ():
        if isinstance(key, str) and isinstance(value, Tensor):
            yield f"{prefix}{key}", value
        elif isinstance(key, str) and depth:
            yield from _named_tensors(value, f"{prefix}{key}.", depth - 1)


def _prefixes(tensors: State, model: nn.Module) -> Counter[str]:
    """Returns what is before names of the model in the file, with the number of these names."""
    own = model.state_dict().keys()
    return Counter(
        name[:start]
        for name in tensors
        for start in (0, *(dot.end() for dot in re.finditer(r"\.", name)))
        if name[start:] in own
    )


def _most_names(tensors: State, model: nn.Module) -> int:
    return max(_prefixes(tensors, model).values(), default=0)


def _state_dict(tensors: State, model: nn.Module) -> tuple[State, list[str]]:
    """Returns the weights behind the prefix with most names of the model, without auxiliary heads
    that the model lacks; and notes for the log."""
    prefixes, own = _prefixes(tensors, model), model.state_dict()
    most = max(prefixes.values(), default=0)
    # Of several that fit alike, the first in the file.
    prefix, *others = [each for each, count in prefixes.items() if count == most] or [""]
    state = {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    taken, *also = [each.strip(".") or "the top level" for each in (prefix, *others)]
    notes = [f"taken from {taken}, not from {', '.join(also)}, which also fits"] if also else []
    return {
        name: tensor
        for name, tensor in state.items()
        if name in own or not name.startswith(_AUXILIARY)
    }, notes


def _resample_positions(state: State, model: nn.Module) -> list[str]:
    """Resamples the position embeddings in `state` to the image size of a model of torchvision or
    timm, with the library's function; returns notes for the log."""
    name = "encoder.pos_embedding" if isinstance(model, VisionTransformer) else "pos_embed"
    own, found = model.state_dict().get(name), state.get(name)
    if own is None or found is None or found.shape == own.shape:
        return []
    resampled = found
    with suppress(RuntimeError, ValueError):  # the patches of the file are not a square
        patches: Any = getattr(model, "patch_embed", None)
        if isinstance(model, VisionTransformer):
            size, patch = model.image_size, model.patch_size
            resampled = interpolate_embeddings(size, patch, OrderedDict({name: found}))[name]
        elif type(patches).__module__.startswith("timm."):
            from timm.layers import resample_abs_pos_embed

            height, width = patches.grid_size
            tokens = own.shape[1] - height * width  # of the class, distillation and registers
            resampled = resample_abs_pos_embed(found, [height, width], num_prefix_tokens=tokens)
    if resampled.shape != own.shape:
        return []
    state[name] = resampled
    return [f"{name} is resampled from {found.shape[1]} to {own.shape[1]} positions"]
