"""The folder of a run, laid out as SageMaker lays out a training container's /opt/ml.

In the container the root is /opt/ml. Elsewhere `ML_ROOT` names it: `runs/<name>`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from entry_point.job.program import UserError
from entry_point.job.whole_file import remove_partial_files, replacing

CONTAINER_ROOT = Path("/opt/ml")
RESOURCES = Path("input/config/resourceconfig.json")
"""The platform's file that exists in every job, relative to the root."""
TUNING_KEY = "_tuning_objective_metric"
"""The hyperparameter that SageMaker adds in a tuning job."""
JOB_NAME = "TRAINING_JOB_NAME"
"""Environment variable: the name of a job in a container."""
PER_JOB = "CHECKPOINTS_PER_JOB"
"""Environment variable: set where jobs share a prefix for checkpoints, such as those started by one
object of the SageMaker SDK."""
PRETRAINED = "pretrained"
"""The value of `model.weights` for published weights, their folder below the working directory, and
the channel with them in a container."""
METRICS = "metrics.jsonl"
LATEST = "latest"
"""The link, beside this machine's runs, to the newest run that has a model."""
RUN_NAME = "TRAIN_RUN_NAME"
"""Environment variable: the value of `name=` with which this machine's launcher resumes the run."""
NEW_RUN = "TRAIN_NEW_RUN"
"""Environment variable: set to the run folder that this start has created."""
LINK_LATEST = "TRAIN_LINK_LATEST"
"""Environment variable: set to the run folder that becomes `latest` once it has a model."""
_NO_DATA = re.compile(r"code(-[0-9a-f]+)?|pretrained|\..*")
"""Channels of your own code, also under the names of `make docker-train`, and of weights."""
_RUN_NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,62}")
"""SageMaker's pattern for job names, so that a run and a job can have the same name."""
SHARDED = "ShardedByS3Key"
"""The distribution of a channel that gives each host a share."""


class ContractError(UserError):
    """The platform's or launcher's description of the job is invalid, or names something that does
    not exist. The message names the file or the variable."""


def check_run_name(name: str) -> None:
    """Raise UserError unless `name` is valid for a run or a sweep of this machine."""
    if name == LATEST:
        raise UserError(f"name={name}: reserved for the link to the newest run; choose another")
    if not _RUN_NAME.fullmatch(name):
        raise UserError(
            f"name={name}: must be 1 to 63 letters, digits and inner hyphens, such as first-try"
        )


def read_json(path: Path) -> dict[str, Any]:
    """Returns a file's JSON object; an empty one without the file. Raises ContractError."""
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ContractError(f"{path}: must be JSON ({error})") from error
    if not isinstance(content, dict):
        raise ContractError(f"{path}: must hold a JSON object, not {type(content).__name__}")
    return content


def has_resources(root: Path) -> bool:
    """Returns whether the platform's files of a job exist below `root`."""
    try:
        return (root / RESOURCES).exists()
    except PermissionError:
        return False


def logs_are_collected() -> bool:
    """Returns whether this is a job in a container, whose output becomes a log even if it is a
    terminal."""
    return has_resources(CONTAINER_ROOT)


def require_model(folder: Path) -> None:
    """Raise ContractError unless `folder`, a `model_dir`, holds the model of a run.

    The message says which run a link such as `runs/latest` points to.
    """
    if (folder / "model.safetensors").is_file():
        return
    links = [link for link in (folder, *folder.parents) if link.is_symlink()]
    to = "".join(f" ({link} points to {link.readlink()})" for link in links)
    why, way = "there is no such folder", "name the model folder of a finished run"
    if folder.is_dir():
        why = "has no model.safetensors"
    elif folder.is_file():
        unpack = f"tar -xf {shlex.quote(str(folder))} -C FOLDER"
        why, way = "is a file", f"unpack it with `{unpack}`, and set FOLDER"
    for near in (folder / "model", folder.parent):
        if (near / "model.safetensors").is_file():
            way = f"set {near}"
    raise ContractError(f"model_dir={folder}: {why}{to}; {way}")


def data_channels(channels: Iterable[str], overrides: Iterable[str] = ()) -> list[str]:
    """Returns the input channels that may hold a dataset, in alphabetical order. Channels in the
    path of an override, or named by `model.weights`, are meant for that setting."""
    named = set[str]()
    for text in overrides:
        key, _, value = text.partition("=")
        path = value.strip("'")
        if path.startswith("/") or key == "model.weights":
            named.update(path.split("/"))
    return sorted(name for name in {*channels} - named if not _NO_DATA.fullmatch(name))


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run. Nothing is created until `create()`."""

    root: Path

    @classmethod
    def from_environment(cls) -> RunFolder:
        """Returns the folder that `ML_ROOT` names, else /opt/ml."""
        if named := os.environ.get("ML_ROOT"):
            return cls(Path(named).absolute())
        if CONTAINER_ROOT.is_dir():
            return cls(CONTAINER_ROOT)
        raise ContractError(
            f"no run folder: {CONTAINER_ROOT} does not exist and ML_ROOT is not set; "
            "use `make local-train`, or set ML_ROOT=runs/NAME"
        )

    @property
    def platform_config(self) -> Path:
        """The folder of the platform's files: hyperparameters.json, resourceconfig.json, ..."""
        return self.root / "input" / "config"

    @property
    def channels(self) -> Path:
        """The folder that has a folder per input channel."""
        return self.root / "input" / "data"

    def has_data(self, overrides: Iterable[str]) -> bool:
        """Returns whether an input channel may hold a dataset, see `data_channels`. Such a job must
        not train on the demo."""
        folders = (path.name for path in self.channels.glob("*") if path.is_dir())
        return bool(data_channels(folders, overrides))

    def check_channels(self, hosts: int) -> None:
        """Check that every channel in inputdataconfig.json has a folder and, with several `hosts`,
        all its files on each of them. Raises ContractError."""
        path = self.platform_config / "inputdataconfig.json"
        for channel, given in read_json(path).items():
            if hosts > 1 and given.get("S3DistributionType") == SHARDED:
                raise ContractError(
                    f"{path}: channel {channel!r}: {SHARDED} gives each of the {hosts} hosts only "
                    "a share, and training reads all of it on every host; use FullyReplicated"
                )
            if not (self.channels / channel).is_dir():
                raise ContractError(
                    f"{path}: channel {channel!r}: must have the folder {self.channels / channel}"
                )

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def output(self) -> Path:
        return self.root / "output"

    @property
    def output_data(self) -> Path:
        return self.output / "data"

    @property
    def profile(self) -> Path:
        return self.output_data / "profile"

    @property
    def tensorboard(self) -> Path:
        return self.output_data / "tensorboard"

    @cached_property
    def checkpoints(self) -> Path:
        """The folder of checkpoints; jobs that share a prefix in S3 have one each, by job name."""
        path = self.platform_config / "hyperparameters.json"
        shared = f"{PER_JOB} is set" if os.environ.get(PER_JOB) else ""
        if TUNING_KEY in read_json(path):
            shared = f"{path} has {TUNING_KEY}, as the trials of a tuning job have"
        name = os.environ.get(JOB_NAME, "")
        if shared and not name:
            raise ContractError(
                f"{shared}, but {JOB_NAME} is not set; set it to the job's name, or jobs would mix "
                "their checkpoints"
            )
        return self.root / "checkpoints" / (name if shared else "")

    @property
    def metrics(self) -> Path:
        """The run's history, a JSON object per line. It is beside the checkpoints, so that it
        survives a restart."""
        return self.checkpoints / METRICS

    @property
    def resumed_by(self) -> str:
        """How to resume this run, for messages. Without its name, a launcher on this machine would
        start a new one."""
        if has_resources(self.root):
            return "a job with the same checkpoints"
        name = os.environ.get(RUN_NAME)
        return f"the same command with name={name}" if name else "the same command"

    @property
    def failure(self) -> Path:
        """The file whose first 1024 characters become the job's FailureReason."""
        return self.output / "failure"

    @property
    def config(self) -> Path:
        """The configuration of the job that started last, for its ranks."""
        return self.output / "config.yaml"

    @property
    def lock(self) -> Path:
        """The lock. It is in `output`, which containers of one run share, and of which platforms
        upload only `output/data`."""
        return self.output / "lock"

    def create(self) -> None:
        """Create the folders that a run writes to, and remove partial files of killed processes.

        Only the process that holds the run's lock may call it.
        """
        for folder in (self.model, self.output_data, self.tensorboard, self.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
            remove_partial_files(folder)

    def remove_refused(self) -> None:
        """Remove the run if this start has created it and it has not trained: the command was
        refused."""
        kept = (self.root / "checkpoints").rglob("*")
        if not any(file.is_file() and file.stat().st_size for file in kept):
            shutil.rmtree(self.root)

    def copy_metrics(self) -> None:
        """Copy the complete lines of the run's history, if it has one, to `output/data`, which
        platforms upload. If that fails, log one line."""
        copy = self.output_data / METRICS
        if not self.metrics.is_file():
            return
        try:
            lines = self.metrics.read_bytes()
            with replacing(copy) as temporary:
                temporary.write_bytes(lines[: lines.rfind(b"\n") + 1])
        except OSError as error:
            sys.stderr.write(f"train: no {copy} ({error.strerror}); {self.metrics} has the same\n")

    def become_latest(self) -> None:
        """Make `latest` a link to this run; an existing link is replaced atomically.

        Where that is impossible, as for a folder or without links in the file system, log one line.
        """
        latest = self.root.with_name(LATEST)
        fresh = self.root.with_name(f".{LATEST}-{os.getpid()}")
        try:
            fresh.symlink_to(self.root.name)
            fresh.replace(latest)
        except OSError as error:
            with suppress(OSError):
                fresh.unlink(missing_ok=True)
            sys.stderr.write(
                f"train: {latest} cannot link to this run ({error.strerror}); name the run's "
                f"folder instead: {self.root}\n"
            )
