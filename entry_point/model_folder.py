"""The model folder of a run: training writes it, `predict` and `serve` load it.

| File | Contents |
|---|---|
| model.safetensors | the network's state dict; its metadata has what a finished run reached |
| config.yaml | the run's configuration, by which the network and the task are built again |
| classes.json | the names of the classes, labels or numbers |
| head.json | the state of the task's head, if it has any: a regression's mean and deviation |
| code/project/ | your own code, if the configuration names any of it |

If a stopped job left it, config.yaml also says how far the run was, as `unfinished`. In an image,
it says the digest of the image's base, as `base_image`.

A folder may come from a stranger. Of what its configuration names, only known words and its own
code resolve, and building fetches no weights.
"""

from __future__ import annotations

import gzip
import json
import logging
import os
import re
import shutil
import sys
import tarfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pydantic.dataclasses
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_model as write_weights
from torch import Tensor, nn
from yaml import YAMLError, safe_load

from entry_point.config.compose import load_resolved
from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import Crop
from entry_point.config.resolve import TIMM
from entry_point.config.schema import SETTINGS, Int
from entry_point.config.train_config import TrainConfig
from entry_point.data.errors import DataError
from entry_point.data.sources.file_bytes import read_text
from entry_point.data.sources.source import Source
from entry_point.job.archive import unpack
from entry_point.job.file_kinds import name_kind
from entry_point.job.own_code import PACKAGE, find_project_in
from entry_point.job.program import UserError, shortened
from entry_point.job.run_folder import require_model
from entry_point.job.whole_file import if_supported, replacing, sync, write_text
from entry_point.training.checkpoints import DamagedFileError, load_safetensors, load_state
from entry_point.training.class_rows import CLASSES
from entry_point.training.models import Normalize, build_model
from entry_point.training.tasks.build_task import build_task, task_class
from entry_point.training.tasks.task import Task

logger = logging.getLogger(__name__)

WEIGHTS = "model.safetensors"
CONFIG = "config.yaml"
HEAD = "head.json"
VALIDATION = "validation"
CODE = "code"
_WITHOUT_WEIGHTS = {
    "weights": None,
    "weights_backbone": None,
    "pretrained": False,
    "checkpoint_path": "",
}
"""Arguments of a model's function that name weights to start from; with these values, none."""
_MOST_CHARACTERS = 200
"""Of the line that says what a run reached."""
_HEADER = tarfile.BLOCKSIZE
_MOST_TIMES_LARGER, _MOST_BYTES_MORE = 10, 2**30
"""How much an archive may unpack to: weights hardly compress."""


class ModelError(UserError):
    """The model folder cannot be loaded; the message says what to do, however long names are."""

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


@pydantic.dataclasses.dataclass(config=SETTINGS)
class Unfinished:
    """How far the run of a stopped job was when it had the weights of the model."""

    epoch: Int
    """Complete epochs."""
    step: Int
    """Optimizer steps since the start of the run."""


@pydantic.dataclasses.dataclass(config=SETTINGS)
class SavedConfig(TrainConfig):
    """config.yaml."""

    unfinished: Unfinished | None = None
    """None if the run was finished."""
    base_image: str | None = None
    """Digest of the image's base; None if the run was in no container."""

    def describe_unfinished(self) -> str | None:
        """Returns what to print of a model that a stopped job left; None for a finished run's."""
        if self.unfinished is None:
            return None
        epoch, step = self.unfinished.epoch, self.unfinished.step
        return (
            "unfinished model: its job was stopped; weights of "
            f"step {step}, after {epoch} of {self.trainer.epochs} epochs"
        )


@dataclass(frozen=True)
class Model:
    """A loaded model folder."""

    answers: nn.Module
    """See `Answers`: uint8 `(N, 3, image_size, image_size)` -> float32 `(N, ...)`."""
    task: Task
    """Says what an answer is, see `Task.rows` and `Task.describe`."""
    kind: str
    """`task.name` of the training."""
    image_size: int
    resize: int
    crop: Crop
    gray_bits: int
    device: torch.device
    architecture: str
    """`model.name` of the training."""
    validation: str | None = None
    """The weights' metric on the split that chose them, such as `accuracy 84.67 %`."""
    unfinished: str | None = None
    """What to print if a stopped job left it."""

    @property
    def names(self) -> list[str]:
        """Those of its classes, labels or numbers."""
        return self.task.names

    @torch.inference_mode()
    def predict(self, images: Tensor) -> Tensor:
        """uint8 `(N, 3, image_size, image_size)` -> float32 answers `(N, ...)`, on the CPU."""
        answers: Tensor = self.answers(images.to(self.device))
        return answers.float().cpu()


@dataclass(frozen=True)
class Trained:
    """What the trainer had at its end."""

    config: SavedConfig
    classes: list[str]
    """The names of the train split's classes, labels or numbers."""
    task: Task
    network: nn.Module
    """On the device, in eval mode."""


# -- training


def save_model(
    folder: Path,
    network: nn.Module,
    task: Task,
    classes: list[str],
    config: TrainConfig,
    yaml: str,
    unfinished: Unfinished | None = None,
    validation: str | None = None,
) -> None:
    """Write the folder. `classes` are the train split's, `yaml` is the configuration as text.

    Weights are written first under another name, and named last: with them the folder is whole. A
    kill leaves the folder that was there, or one without weights, which no program accepts.
    """
    weights = folder / WEIGHTS
    with replacing(weights) as temporary:
        with _disk_errors(weights):
            reached = None if validation is None else {VALIDATION: validation}
            write_weights(network, str(temporary), metadata=reached)
        sync(temporary)  # not while the folder has no weights
        for name in (WEIGHTS, CONFIG, CLASSES, HEAD):
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / CODE, ignore_errors=True)
        write_text(folder / CLASSES, json.dumps(classes, ensure_ascii=False) + "\n")
        if unfinished is not None:
            yaml += f"unfinished:\n  epoch: {unfinished.epoch}\n  step: {unfinished.step}\n"
        if base := os.environ.get("IMAGE_BASE_DIGEST"):
            yaml += f"base_image: {base}\n"
        write_text(folder / CONFIG, yaml)
        if state := task.head.state_dict():
            values = {name: value.tolist() for name, value in state.items()}
            write_text(folder / HEAD, json.dumps(values) + "\n")
        _save_code(folder, config)
        # safetensors makes files that no other user can read.
        with if_supported():
            temporary.chmod((folder / CONFIG).stat().st_mode)


def has_finished_model(folder: Path, since: float) -> bool:
    """Returns whether a run that ended has written the folder since that time, see `time.time`."""
    weights = folder / WEIGHTS
    if not weights.is_file() or weights.stat().st_mtime < since:
        return False
    return "unfinished" not in safe_load((folder / CONFIG).read_text(encoding="utf-8"))


def _save_code(folder: Path, config: TrainConfig) -> None:
    """Copy the package `project` if the configuration names any of it; warn of other code."""
    named = list(_dotted_paths(config))
    if any(path.startswith(f"{PACKAGE}.") for _, path in named):
        spec = find_spec(PACKAGE)
        assert spec is not None and spec.submodule_search_locations
        (source,) = spec.submodule_search_locations
        # Not shutil.copytree: it sets permissions and times, which not every file system has.
        for parent, _, names in os.walk(source, followlinks=True):
            files = [Path(parent, name) for name in names]
            for file in files if "__pycache__" not in parent else ():
                if file.is_file():
                    copy = folder / CODE / PACKAGE / file.relative_to(source)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, copy)
    for key, path in named:
        if not path.startswith(f"{PACKAGE}."):
            logger.warning("predict and serve refuse %s=%s: move it to %s/", key, path, PACKAGE)


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    """Raise the error of a disk as OSError: safetensors has its number in a text only."""
    try:
        yield
    except SafetensorError as error:
        number = re.search(r"os error (\d+)", str(error))
        if number is None:
            raise
        raise OSError(int(number[1]), os.strerror(int(number[1])), str(path)) from error


def _dotted_paths(config: TrainConfig) -> Iterator[tuple[str, str]]:
    """Yields the settings that name code which a loaded model needs, and the code."""
    named = {
        "model.name": config.model.name,
        "task.name": config.task.name,
        "task.loss": config.task.loss or "",
    }
    for key, name in named.items():
        if "." in name and not name.startswith(TIMM):
            yield key, name


# -- predict, serve and evaluate


def load_model(folder: Path, device: torch.device) -> Model:
    """Returns the model and its preprocessing, for images of any source. Raises ModelError."""
    trained = load_trained(folder, device)
    data, task = trained.config.data, trained.task
    if device.type == "cuda":
        # By default, convolutions on a GPU round to the 10 bits of TF32, unlike those on a CPU.
        torch.backends.cudnn.allow_tf32 = False
    answers = Answers(trained.network, Normalize(*data.normalization), task.head)
    with safe_open(folder / WEIGHTS, "pt") as opened:
        reached: str | None = (opened.metadata() or {}).get(VALIDATION)
    return Model(
        answers=answers.to(device).eval().requires_grad_(False),
        task=task,
        kind=trained.config.task.name,
        image_size=data.image_size,
        resize=data.resize,
        crop=data.crop,
        gray_bits=data.gray_bits,
        device=device,
        architecture=trained.config.model.name,
        validation=reached and reached[:_MOST_CHARACTERS],
        unfinished=trained.config.describe_unfinished(),
    )


@contextmanager
def unpacked(model: Path) -> Iterator[Path]:
    """The model's folder; that of an archive is temporary.

    Raises ModelError for a bad archive, and ContractError for a folder without a model.
    """
    if not model.is_file():
        require_model(model)
        yield model
        return
    with TemporaryDirectory() as folder:
        try:
            with _plain_tar(model) as file, tarfile.open(fileobj=file, mode="r:") as archive:
                unpack(archive, Path(folder))
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
            raise ModelError(f"{model} cannot be unpacked safely: {error}") from error
        yield Path(folder)


@contextmanager
def _plain_tar(model: Path) -> Iterator[Any]:
    """The tar in a file, which may be compressed with gzip, as SageMaker does."""
    with model.open("rb") as file:
        start = file.peek(_HEADER)[:_HEADER]
        is_gzip = start[:2] == b"\x1f\x8b"
        if not is_gzip and b"ustar" not in start and (kind := name_kind(model)):
            raise tarfile.TarError(f"it is {kind}")
        most = _MOST_TIMES_LARGER * model.stat().st_size + _MOST_BYTES_MORE
        yield _Limited(gzip.open(file) if is_gzip else file, most)


class _Limited:
    """A file of which only so many bytes can be read; then it raises tarfile.TarError.

    tarfile itself holds a header of any size in memory, and reads one of negative size for ever.
    """

    def __init__(self, file: Any, most: int) -> None:
        self._file, self._left, self._most = file, most, most
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        self._left -= size
        if size < 0 or self._left < 0:
            raise tarfile.TarError(f"it holds more than {self._most} bytes")
        content: bytes = self._file.read(size)
        return content


def load_trained(folder: Path, device: torch.device) -> Trained:
    """Build network and task as the trainer did, and load their state.

    Raises:
        ModelError: a file is missing or damaged, or does not fit the others.
    """
    config = read_config(folder)
    _use_own_code(folder, config)
    classes = _read_json(folder / CLASSES)
    if not isinstance(classes, list) or not all(isinstance(name, str) for name in classes):
        raise ModelError(f"{folder / CLASSES}: must be a list of names: copy the model again")
    if twice := [name for name, count in Counter(classes).items() if count > 1]:
        message = "answers could not tell them apart; give each another name"
        raise ModelError(f"{folder / CLASSES}: {twice[0]!r} occurs twice: {message}")
    size = config.data.image_size
    try:
        takes = getattr(task_class(config.task.name), "takes", "class")
        task = build_task(config, cast(Source, _NoImages(takes, classes)), device)
        kwargs = {k: _WITHOUT_WEIGHTS.get(k, value) for k, value in config.model.kwargs.items()}
        model = replace(config.model, weights=None, kwargs=kwargs)
        network = build_model(model, task.outputs, image_size=size)
    except ConfigError as error:
        raise ModelError(f"{folder / CONFIG}: {error}") from error
    try:
        _load_weights(network, folder / WEIGHTS)
    except (DamagedFileError, RuntimeError, OSError) as error:
        raise _damaged(folder / WEIGHTS, error) from error
    if (head := folder / HEAD).exists():
        content = _read_json(head)
        try:
            state = {name: torch.tensor(value) for name, value in content.items()}
            task.head.load_state_dict(state)
        except (RuntimeError, AttributeError, TypeError, ValueError) as error:
            raise _damaged(head, error) from error
    network = network.to(device).to(memory_format=torch.channels_last).eval()
    return Trained(config, classes, task, network)


def _load_weights(network: nn.Module, file: Path) -> None:
    """Load what `save_model` of safetensors wrote, which has a tied weight under one of its names.

    Raises DamagedFileError, OSError, and RuntimeError for weights of another network.
    """
    tensors, own = load_safetensors(file), network.state_dict()
    tied = {own[name].data_ptr(): tensor for name, tensor in tensors.items() if name in own}
    for name, weight in own.items():
        if name not in tensors and weight.data_ptr() in tied:
            tensors[name] = tied[weight.data_ptr()]
    load_state(network, tensors)


def _damaged(file: Path, error: Exception) -> ModelError:
    reason = " ".join(str(error).split())
    return ModelError(f"{file} cannot be loaded ({reason}): copy the model again")


def read_config(folder: Path) -> SavedConfig:
    """Returns the configuration that produced the model. Raises ModelError."""
    if not (folder / CONFIG).is_file():
        raise ModelError(f"{folder} has no {CONFIG}: name the model folder of a finished run")
    try:
        return load_resolved(read_text(folder / CONFIG), SavedConfig)
    except (ConfigError, DataError, OSError, ValueError, RecursionError, YAMLError) as error:
        reason = " ".join(str(error).split())
        message = "use the image that trained the model, or copy the file again"
        raise ModelError(f"{folder / CONFIG}: {reason}: {message}") from error


def _read_json(file: Path) -> Any:
    try:
        return json.loads(read_text(file))
    except (OSError, DataError, ValueError, RecursionError) as error:
        raise ModelError(f"{file} cannot be read ({error}): copy the model again") from error


def _use_own_code(folder: Path, config: TrainConfig) -> None:
    """Have the package `project` come from the folder, if the configuration names any of it.

    Raises ModelError for a name outside it: a stranger's folder calls nothing of this machine.
    """
    paths = list(_dotted_paths(config))
    for key, path in paths:
        if not path.startswith(f"{PACKAGE}."):
            message = f"a model folder may name known words and its own {CODE}/{PACKAGE} only"
            raise ModelError(f"{folder / CONFIG}: {key}={path}: {message}; import it in {PACKAGE}/")
    if not paths:
        return
    if not (folder / CODE / PACKAGE).is_dir():
        raise ModelError(f"{folder} has no {CODE}/{PACKAGE}, which {paths[0][1]} is part of")
    for file in (folder / CODE).rglob("*"):
        if not file.is_file() and not file.is_dir():  # importing a pipe waits for ever
            raise ModelError(f"{file} is not a regular file: copy the model again")
    for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
        del sys.modules[name]
    sys.dont_write_bytecode = True  # the folder may be read-only, and stays as it was copied
    find_project_in(folder / CODE)


@dataclass(frozen=True)
class _NoImages:
    """What a task is built from instead of the train split, which is not here: the names, and one
    sample of zeros in place of the labels."""

    kind: str
    classes: list[str]

    def __len__(self) -> int:
        return 1

    @property
    def labels(self) -> Tensor:
        is_class = self.kind == "class"
        return torch.zeros(1, dtype=torch.int64) if is_class else torch.zeros(1, len(self.classes))
