"""Finds the file that `model.weights` means, and fits the weights in it to a model.

Files store weights under different keys (`model`, `state_dict`), beside other content such as an
optimizer, and with different prefixes (`module.`, `net.`, `backbone.`). This code does not need to
know them: it gives each tensor a dotted name, and removes the prefix that leaves the most names of
the model.
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

from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.serialization import safe_globals
from torchvision.models import MNASNet, VisionTransformer
from torchvision.models.vision_transformer import interpolate_embeddings

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import ModelConfig
from entry_point.data.errors import DataError
from entry_point.data.sources.file_bytes import read_text
from entry_point.job.run_folder import PRETRAINED
from entry_point.job.text import listed, shortened
from entry_point.training.checkpoints import DamagedFileError, load_safetensors, load_tensors
from entry_point.training.dense_models import PyramidHead
from entry_point.training.published_weights import SAFETENSORS, published

logger = logging.getLogger(__name__)

State = dict[str, Tensor]
CLASSES = "classes.json"
"""The file of the names of classes, labels or numbers, beside the weights in a model folder."""
_SUFFIXES = (".pt", ".pth", ".ckpt", SAFETENSORS)
_DEPTH = 4
"""Deepest level of nested dicts that is searched for tensors."""
# DenseNet's published weights have norm.1 where the model has norm1.
_DENSE_LAYER = re.compile(r"(?<=\.denselayer)(\d+\.(?:norm|conv))\.(?=[12]\.)")
_COMPILED = "_orig_mod."
"""The prefix that torch.compile adds to names."""
_AUXILIARY = ("aux1.", "aux2.", "AuxLogits.", "aux_classifier.")
_REFUSED = "Weights only load failed"
_OBJECT = re.compile(r"GLOBAL (\S+)")
"""Finds the class in torch's error about a pickle that holds more than tensors."""


def weights_file(config: ModelConfig, channels: Path | None) -> Path:
    """Returns the file that `model.weights` means: the one that `make weights` fetched for
    `model.name`, a path, or the only weights file of a channel.

    Raises ConfigError if there is none.
    """
    weights, inputs = str(config.weights), channels or Path()
    if weights == PRETRAINED and (found := published(config.name)) is not None:
        for folder in (Path(PRETRAINED), inputs / PRETRAINED):
            if (folder / found.file).is_file():
                return folder / found.file
        message = (
            f"there is no {found.file} in the folder or channel {PRETRAINED}; run "
            f"`make weights ARGS={config.name}` on a machine with a network"
        )
        raise ConfigError("model.weights", PRETRAINED, message)
    path = Path(weights)
    if path.is_file():
        return path
    folder = path if path.is_dir() else inputs / weights
    files = [file for file in folder.glob("*") if file.suffix in _SUFFIXES and file.is_file()]
    if len(files) != 1:
        message = (
            f"must be a file, or a folder or channel with exactly one "
            f"{' or '.join(f'*{suffix}' for suffix in _SUFFIXES)}; found {len(files)} in {folder}"
        )
        raise ConfigError("model.weights", weights, message)
    return files[0]


def load_weights(
    model: nn.Module,
    path: Path,
    names: Sequence[str],
    build_larger: Callable[[], nn.Module],
    build_classifier: Callable[[], nn.Module],
) -> None:
    """Load the weights in `path`, or raise ConfigError if they do not fit.

    The head keeps its initial weights if the file has no head of this size, or a head for other
    outputs than `names` or another order of them; this is logged. Position embeddings of another
    image size are resampled. A PyramidHead also takes the weights of a classifier for its encoder.

    `build_larger` builds the same model with one more output; `build_classifier` builds the
    classifier that the encoder of a PyramidHead is a part of.
    """
    tensors, known = _read(path)
    what = "weights"
    if isinstance(model, PyramidHead) and not any(".lateral." in f".{name}" for name in tensors):
        model, names, build_larger = cast(nn.Module, model.encoder.model), (), build_classifier
        what = "the encoder's weights"
    own = model.state_dict()
    state, notes = _behind_prefix(tensors, own)
    notes += _resample_positions(state, model)
    is_for_others = bool(names) and known not in (None, [*names])
    shapes, needed = ({(key, tensor.shape) for key, tensor in s.items()} for s in (state, own))
    differing = {key for key, _ in shapes ^ needed}
    # A second model, with another number of outputs, shows which weights depend on it; building
    # it takes time.
    head = _head(own, build_larger()) if is_for_others or differing else set()
    new = [key for key in own if key in head]
    if is_for_others or not differing.isdisjoint(new):
        state |= {key: own[key] for key in new}
        reason = _describe_outputs(known or [], names) if is_for_others else "none of this size"
        notes.append(f"{', '.join(new)} start from scratch: the file has {reason}")
    elif known is None and names:
        notes.append(f"they name no classes and are taken to be for {listed(names)}, in this order")
    # A self-supervised checkpoint may have a projection in place of the head.
    extra = (*_AUXILIARY, *(f"{key.rpartition('.')[0]}." for key in head))
    _load(model, {k: t for k, t in state.items() if k in own or not k.startswith(extra)}, path)
    logger.info("%s", "; ".join([f"{what} from {path}", *notes]))


def _head(own: State, larger: nn.Module) -> set[str]:
    """Returns the names of the weights that depend on the number of outputs, or that a model
    without outputs does not have."""
    return {
        key
        for key, tensor in larger.state_dict().items()
        if key not in own or own[key].shape != tensor.shape
    }


def _describe_outputs(known: Sequence[str], names: Sequence[str]) -> str:
    if sorted(known) == sorted(names):
        return "the same classes in another order"
    return f"other classes, {listed(known)}"


def _load(model: nn.Module, state: State, path: Path) -> None:
    """Load weights, all of which must fit. Raises ConfigError with torch's reason.

    Without a version, modules also accept the names of their oldest one. Only MNASNet gets its
    version: its published weights have present names, which it would refuse otherwise.
    """
    versioned = OrderedDict(state)
    versioned._metadata = {  # type: ignore[attr-defined]
        name: {"version": module._version}
        for name, module in model.named_modules()
        if isinstance(module, MNASNet)
    }
    try:
        model.load_state_dict(versioned)
    except RuntimeError as error:
        reason = shortened(" ".join(str(error).partition("\n")[2].split()))
        size = "; use the data.image_size of the weights" if "pos_embed" in reason else ""
        message = f"does not fit the model of model.name ({reason}){size}"
        raise ConfigError("model.weights", path, message) from error


def _read(path: Path) -> tuple[State, list[str] | None]:
    """Returns the tensors in a file by dotted names, and the names of the model's outputs if the
    file has them. Raises ConfigError."""
    must = "must be a state dict, as torch.save(model.state_dict(), FILE) writes it"
    try:
        if path.suffix == SAFETENSORS:
            must = "must be a safetensors file"
            content: Any = load_safetensors(path)
        else:
            with safe_globals([Namespace]):  # holds arguments of torchvision's and timm's programs
                content = load_tensors(path)
    except DamagedFileError as error:
        message = f"{must} ({error})"
        if _REFUSED in str(error):
            named = _OBJECT.search(str(error.__cause__))
            message = (
                f"holds a pickled {named[1] if named else 'object'}, and only tensors are read; if "
                "you trust the file, read it with torch.load(FILE, weights_only=False) where its "
                "code is installed, and save its state dict with torch.save(STATE_DICT, NEW_FILE)"
            )
        raise ConfigError("model.weights", path, message) from error
    tensors = {
        _DENSE_LAYER.sub(r"\1", name.replace(_COMPILED, "")): tensor
        for name, tensor in _named_tensors(content)
    }
    if not tensors:
        raise ConfigError("model.weights", path, f"{must}: it holds no named tensors")
    return tensors, _output_names(path, content)


def _named_tensors(
    content: Any, prefix: str = "", depth: int = _DEPTH
) -> Iterator[tuple[str, Tensor]]:
    """Yields the tensors in nested dicts, with their dotted names."""
    for key, value in content.items() if isinstance(content, dict) else ():
        if isinstance(key, str) and isinstance(value, Tensor):
            yield f"{prefix}{key}", value
        elif isinstance(key, str) and depth:
            yield from _named_tensors(value, f"{prefix}{key}.", depth - 1)


def _output_names(path: Path, content: Any) -> list[str] | None:
    """Returns the names of the classes, labels or numbers, from a checkpoint or from CLASSES beside
    other files; None if neither has them. Raises ConfigError.

    Datasets number their classes in different orders: folders alphabetically (0, 1, 10, 2), tables
    of whole numbers by value (0, 1, 2, 10).
    """
    identity = content.get("identity")
    if isinstance(identity, dict):
        return [str(v) for key, v in identity.items() if re.fullmatch(r"class \d+", str(key))]
    beside = path.with_name(CLASSES)
    if not beside.exists():
        return None
    try:
        return [*map(str, TypeAdapter(list[Any]).validate_json(read_text(beside)))]
    except (OSError, DataError, ValueError) as error:
        reason = " ".join(str(error).split())
        message = f"{beside} must be a JSON list of names ({reason}); correct or remove it"
        raise ConfigError("model.weights", path, message) from error


def _behind_prefix(tensors: State, own: State) -> tuple[State, list[str]]:
    """Returns the tensors behind the prefix with most of the model's names, and notes for the
    log."""
    fits = Counter(
        name[:start]
        for name in tensors
        for start in (0, *(dot.end() for dot in re.finditer(r"\.", name)))
        if name[start:] in own
    )
    most = max(fits.values(), default=0)
    # If several prefixes fit equally, take the first in the file.
    prefix, *others = [each for each, count in fits.items() if count == most] or [""]
    taken, *also = [each.strip(".") or "the top level" for each in (prefix, *others)]
    notes = [f"taken from {taken}, not from {', '.join(also)}, which also fits"] if also else []
    state = {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }
    return state, notes


def _resample_positions(state: State, model: nn.Module) -> list[str]:
    """Resamples the position embeddings in `state` to the image size of a model of torchvision or
    timm, with the library's function; returns notes for the log."""
    name = "encoder.pos_embedding" if isinstance(model, VisionTransformer) else "pos_embed"
    own, found = model.state_dict().get(name), state.get(name)
    if own is None or found is None or found.shape == own.shape:
        return []
    resampled = found
    with suppress(RuntimeError, ValueError):  # the file's patches do not form a square
        patches: Any = getattr(model, "patch_embed", None)
        if isinstance(model, VisionTransformer):
            size, patch = model.image_size, model.patch_size
            resampled = interpolate_embeddings(size, patch, OrderedDict({name: found}))[name]
        elif type(patches).__module__.startswith("timm."):
            from timm.layers import resample_abs_pos_embed

            height, width = patches.grid_size
            tokens = own.shape[1] - height * width  # class, distillation and register tokens
            resampled = resample_abs_pos_embed(found, [height, width], num_prefix_tokens=tokens)
    if resampled.shape != own.shape:
        return []
    state[name] = resampled
    return [f"{name} is resampled from {found.shape[1]} to {own.shape[1]} positions"]
