"""The model folder of a run: training writes it, `predict` and `serve` load it.

| File | Contents |
|---|---|
| model.safetensors | the network's state dict; its metadata has the run's progress and metric |
| config.yaml | the run's configuration, from which the network and the task are built |
| classes.json | the names of the classes, labels or numbers |
| head.json | the state of the task's head, if it has any: a regression's mean and deviation |
| code/project/ | your own code, if the configuration names any of it |

A folder may be untrusted: its configuration can name only built-in parts and the folder's own code,
and building the network downloads no weights.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tarfile
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import cast

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from yaml import YAMLError

from entry_point.config.compose import load_resolved
from entry_point.config.config_errors import ConfigError
from entry_point.config.resolve import TIMM
from entry_point.config.train_config import TrainConfig
from entry_point.data.sources.file_bytes import read_text
from entry_point.data.sources.source import Source
from entry_point.job.archive import unpack_file
from entry_point.job.own_code import PACKAGE, find_project_in
from entry_point.job.program import UserError
from entry_point.job.run_folder import require_model
from entry_point.job.text import shortened
from entry_point.job.whole_file import if_supported, replacing, sync, write_text
from entry_point.training.checkpoints import load_safetensors, load_state
from entry_point.training.models import Normalize, build_again
from entry_point.training.tasks.build_task import build_task, task_class
from entry_point.training.tasks.task import Task
from entry_point.training.weights import CLASSES

WEIGHTS = "model.safetensors"
CONFIG = "config.yaml"
HEAD = "head.json"
FILES = (WEIGHTS, CONFIG, CLASSES, HEAD)
CODE = "code"
_REACHED, _REACHED_IN_1 = "reached", "validation"
_DAMAGE = (AttributeError, OSError, RuntimeError, TypeError, ValueError, YAMLError)
"""Errors of libraries for a file that is missing, damaged, or of another network."""
NOT_FINITE = "the model answers NaN or infinite numbers"
_MOST_CHARACTERS = 200
"""Longest line on a run's progress and metric that is read."""


class ModelError(UserError):
    """The model folder cannot be loaded. Long names are cut in the message, not what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(shortened(message))


class Answers(nn.Module):
    """uint8 RGB `(N, 3, S, S)` -> float32 answers: preprocessing, network, and `Task.head`."""

    def __init__(self, network: nn.Module, normalize: Normalize, head: nn.Module) -> None:
        super().__init__()
        self.normalize, self.network, self.head = normalize, network, head

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.network(self.normalize(images))
        answers: Tensor = self.head(outputs.float())
        return answers


@dataclass(frozen=True)
class Trained:
    """A trained network, its task and its configuration."""

    config: TrainConfig
    task: Task
    """Turns answers into rows and values, see `Task.rows` and `Task.describe`."""
    classes: list[str]
    """Names of the train split's classes, labels or numbers."""
    network: nn.Module
    """On the device, in eval mode."""
    device: torch.device
    reached: str | None
    """Progress and metric of the run, such as `epoch 3 of 90, validation accuracy 84.67 %`."""


@dataclass(frozen=True)
class Model(Trained):
    """A trained model with its preprocessing."""

    answers: nn.Module
    """See `Answers`: uint8 `(N, 3, image_size, image_size)` -> float32 `(N, ...)`."""

    @property
    def image_size(self) -> int:
        """Height and width of the model's input in pixels."""
        return self.config.data.image_size

    @torch.inference_mode()
    def predict(self, images: Tensor) -> Tensor:
        """Returns float32 answers `(N, ...)`, on the CPU, for uint8 images
        `(N, 3, image_size, image_size)`."""
        answers: Tensor = self.answers(images.to(self.device))
        return answers.float().cpu()


# -- training writes it


def save_model(
    folder: Path,
    weights: Mapping[str, Tensor],
    task: Task,
    classes: list[str],
    yaml: str,
    code: Mapping[Path, bytes],
    reached: str | None = None,
) -> None:
    """Write the folder. `weights` are a network's state dict, `classes` those of the train split;
    `yaml` is the configuration as text, `code` the result of `read_code`, and `reached` the run's
    progress and metric.

    The weights are written first, under a temporary name, and renamed last: a folder with weights
    is complete. A kill leaves the earlier folder, or one without weights, which programs refuse.
    """
    with replacing(folder / WEIGHTS) as temporary:
        _write_weights(temporary, weights, reached)
        for name in FILES:
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / CODE, ignore_errors=True)
        write_text(folder / CLASSES, json.dumps(classes, ensure_ascii=False) + "\n")
        write_text(folder / CONFIG, yaml)
        if state := task.head.state_dict():
            values = {name: value.tolist() for name, value in state.items()}
            write_text(folder / HEAD, json.dumps(values) + "\n")
        for place, content in code.items():
            copy = folder / CODE / PACKAGE / place
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(content)
        # safetensors creates files that only their owner can read.
        with if_supported():
            temporary.chmod((folder / CONFIG).stat().st_mode)


def _write_weights(file: Path, weights: Mapping[str, Tensor], reached: str | None) -> None:
    """Write weights to disk. Raises OSError, whose number safetensors has in its text only."""
    # Copies, because safetensors refuses tensors that share memory or are not contiguous.
    as_read = {
        name: value.detach().to("cpu").clone(memory_format=torch.contiguous_format)
        for name, value in weights.items()
    }
    try:
        save_file(as_read, file, None if reached is None else {_REACHED: reached})
    except SafetensorError as error:
        if (number := re.search(r"os error (\d+)", str(error))) is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
    sync(file)  # before the old weights are removed


def read_code(config: TrainConfig) -> dict[Path, bytes]:
    """Returns the files of the package `project`, if the configuration names any of it.

    A job reads them when it begins: edits during training do not affect its weights.
    """
    if not _named_code(config)[0]:
        return {}
    spec = find_spec(PACKAGE)
    assert spec is not None and spec.submodule_search_locations
    source, files = spec.submodule_search_locations[0], dict[Path, bytes]()
    for parent, folders, names in os.walk(source, followlinks=True):
        folders[:] = [name for name in folders if name != "__pycache__"]
        for file in (Path(parent, name) for name in names):
            if file.is_file():
                files[file.relative_to(source)] = file.read_bytes()
    return files


def _named_code(config: TrainConfig) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the code that a loaded model needs, by the settings that name it: code of the package
    `project`, and other code."""
    settings = {
        "model.name": config.model.name,
        "task.name": config.task.name,
        "task.loss": config.task.loss or "",
    }
    named = {k: name for k, name in settings.items() if "." in name and not name.startswith(TIMM)}
    own = {k: name for k, name in named.items() if name.startswith(f"{PACKAGE}.")}
    return own, {k: name for k, name in named.items() if k not in own}


def doubts(config: TrainConfig, classes: list[str]) -> list[str]:
    """Returns a line for each setting that names code which a model folder cannot hold, or a task
    that cannot be built from it. `classes` are the train split's."""
    own, others = _named_code(config)
    lines = [
        f"predict and serve refuse {key}={path}: move it to {PACKAGE}/"
        for key, path in others.items()
    ]
    if "task.name" in own:
        try:
            _build_task(config, classes, torch.device("cpu"))
        except Exception as error:  # your own code may raise any error
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            lines.append(
                f"predict and serve cannot build task.name={own['task.name']} ({reason}): there, "
                "`train` has the names of the classes and one sample of zeros, and no images"
            )
    return lines


def load_weights(folder: Path, network: nn.Module) -> None:
    """Load the folder's weights, which have only one of the names of a tied weight.

    Raises ModelError for a damaged file, or weights of another network.
    """
    with _naming(folder / WEIGHTS):
        tensors, own = load_safetensors(folder / WEIGHTS), network.state_dict()
        tied = {own[name].data_ptr(): tensor for name, tensor in tensors.items() if name in own}
        for name, weight in own.items():
            if name not in tensors and weight.data_ptr() in tied:
                tensors[name] = tied[weight.data_ptr()]
        load_state(network, tensors)


# -- predict, serve and evaluate load it


@contextmanager
def unpacked(model: Path) -> Iterator[Path]:
    """Yield the model's folder, or a temporary one with the content of an archive.

    Raises ModelError for a bad archive, and ContractError for a folder without a model.
    """
    if not model.is_file() or model.name in FILES:
        require_model(model)
        yield model
        return
    with TemporaryDirectory() as folder:
        try:
            unpack_file(model, Path(folder))
        except tarfile.TarError as error:
            raise ModelError(f"{model} cannot be unpacked safely: {error}") from error
        if not Path(folder, CONFIG).is_file():
            way = "pack it with `tar -czf FILE -C MODEL_FOLDER .`"
            raise ModelError(f"{model} has no {CONFIG} at its top: {way}")
        try:
            yield Path(folder)
        except UserError as error:  # name the archive: the temporary folder is gone by then
            error.args = tuple(text.replace(folder, str(model)) for text in error.args)
            raise


def load_model(folder: Path, device: torch.device) -> Model:
    """Load a model with its preprocessing. Raises ModelError."""
    trained = load_trained(folder, device)
    if device.type == "cuda":
        # By default, convolutions on a GPU use TF32 with 10 bits, unlike those on a CPU.
        torch.backends.cudnn.allow_tf32 = False
    normalize = Normalize(*trained.config.data.normalization)
    answers = Answers(trained.network, normalize, trained.task.head)
    return Model(**vars(trained), answers=answers.to(device).eval().requires_grad_(False))


def load_trained(folder: Path, device: torch.device) -> Trained:
    """Build network and task as the trainer did, and load their state.

    Raises:
        ModelError: a file is missing or damaged, or does not fit the others.
    """
    config = read_config(folder)
    classes = _read_classes(folder / CLASSES)
    with _own_code(folder, config), _naming(folder / CONFIG, (ConfigError,)):
        task = _build_task(config, classes, device)
        network = build_again(config.model, task.outputs, config.data.image_size)
    load_weights(folder, network)
    if (head := folder / HEAD).exists() or task.head.state_dict():
        with _naming(head):
            state = json.loads(read_text(head))
            task.head.load_state_dict({name: torch.tensor(value) for name, value in state.items()})
    network = network.to(device).to(memory_format=torch.channels_last)
    network.eval()  # a statement of its own: your model's eval() may return None
    return Trained(config, task, classes, network, device, _read_reached(folder / WEIGHTS))


def _build_task(config: TrainConfig, classes: list[str], device: torch.device) -> Task:
    """Returns the task, built without its train split. Raises ConfigError."""
    takes = getattr(task_class(config.task.name), "takes", "class")
    return build_task(config, cast(Source, _NoImages(takes, classes)), device)


def _read_reached(file: Path) -> str | None:
    """Returns progress and metric from the metadata of weights; version 1 wrote only the metric."""
    with safe_open(file, "pt") as opened:
        found: dict[str, str] = opened.metadata() or {}
    reached = found.get(_REACHED)
    if reached is None and _REACHED_IN_1 in found:
        reached = f"validation {found[_REACHED_IN_1]}"
    return reached and reached[:_MOST_CHARACTERS]


def read_config(folder: Path) -> TrainConfig:
    """Returns the configuration that produced the model. Raises ModelError."""
    if not (folder / CONFIG).is_file():
        raise ModelError(f"{folder} has no {CONFIG}: name the model folder of a finished run")
    with _naming(folder / CONFIG):
        return load_resolved(read_text(folder / CONFIG), TrainConfig)


@contextmanager
def _naming(file: Path, errors: tuple[type[Exception], ...] = _DAMAGE) -> Iterator[None]:
    """Turn these errors into a ModelError of one line that names the file."""
    try:
        yield
    except errors as error:
        reason = " ".join(str(error).split())
        remedy = "copy the model again, or use the image that trained it"
        raise ModelError(f"{file} cannot be loaded ({reason}): {remedy}") from error


@contextmanager
def _own_code(folder: Path, config: TrainConfig) -> Iterator[None]:
    """Import the package `project` from the folder, if the configuration names any of it.

    After the block, a process that had imported another `project`, such as one that trains a
    student, continues with that one; all others keep the folder's.

    Raises ModelError for code outside of it: an untrusted folder must not call code of this
    machine.
    """
    own, others = _named_code(config)
    for key, path in others.items():
        message = f"a model folder may name known words and its own {CODE}/{PACKAGE} only"
        raise ModelError(f"{folder / CONFIG}: {key}={path}: {message}; import it in {PACKAGE}/")
    if not own:
        yield
        return
    if not (folder / CODE / PACKAGE).is_dir():
        named = next(iter(own.values()))
        raise ModelError(f"{folder} has no {CODE}/{PACKAGE}, which {named} is part of")
    for file in (folder / CODE).rglob("*"):
        if not file.is_file() and not file.is_dir():  # importing a pipe would never end
            raise ModelError(f"{file} is not a regular file: copy the model again")
    before, searched = _forget_project(), [*sys.path]
    sys.dont_write_bytecode = True  # the folder stays unchanged, and may be read-only
    find_project_in(folder / CODE)
    try:
        yield
    finally:
        if before:
            _forget_project()
            sys.modules.update(before)
            sys.path[:] = searched


def _forget_project() -> dict[str, ModuleType]:
    """Remove the modules of the package `project` from this process, and return them."""
    names = [name for name in sys.modules if name.partition(".")[0] == PACKAGE]
    return {name: sys.modules.pop(name) for name in names}


def _read_classes(file: Path) -> list[str]:
    """Returns the names, which must be unique, as an answer has a number for each."""
    with _naming(file):
        classes = json.loads(read_text(file))
        if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
            raise TypeError("must be a list of names")
    if twice := [name for name, count in Counter(classes).items() if count > 1]:
        message = "answers could not tell them apart; give each another name"
        raise ModelError(f"{file}: {twice[0]!r} occurs twice: {message}")
    return classes


@dataclass(frozen=True)
class _NoImages:
    """A stand-in for the train split, to build a task: the names, and zeros as one sample's
    labels."""

    kind: str
    classes: list[str]

    def __len__(self) -> int:
        return 1

    @property
    def labels(self) -> Tensor:
        is_class = self.kind == "class"
        return torch.zeros(1, dtype=torch.int64) if is_class else torch.zeros(1, len(self.classes))
