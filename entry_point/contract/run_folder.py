"""One run, one folder: the layout that SageMaker gives a training container, here and there.

In the container the root is /opt/ml; on the desk it is `runs/<name>`, named by `ML_ROOT`.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from entry_point.contract.user_error import UserError

CONTAINER_ROOT = Path("/opt/ml")


class RunFolderError(UserError):
    """There is no folder to run in."""


class RunBusyError(RunFolderError):
    """Another process trains in the folder: nothing there is this one's to change."""

    def __init__(self, root: Path) -> None:
        super().__init__(
            f"another process is training in {root}; wait for it, stop it, or use another name"
        )


@dataclass(frozen=True)
class RunFolder:
    """Paths under one ml root. Nothing is created until `create()`."""

    root: Path

    @classmethod
    def from_environment(cls) -> RunFolder:
        """The folder that `ML_ROOT` names, else /opt/ml where that exists."""
        if named := os.environ.get("ML_ROOT"):
            return cls(Path(named).absolute())
        if CONTAINER_ROOT.is_dir():
            return cls(CONTAINER_ROOT)
        raise RunFolderError(
            f"no run folder: {CONTAINER_ROOT} does not exist and ML_ROOT is not set; "
            "set ML_ROOT=runs/<name> (make local-train does)"
        )

    @property
    def contract(self) -> Path:
        """Where the platform leaves hyperparameters.json, resourceconfig.json and the like."""
        return self.root / "input" / "config"

    @property
    def channels(self) -> Path:
        """One folder per input channel."""
        return self.root / "input" / "data"

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

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    @property
    def failure(self) -> Path:
        """Its first 1024 characters become the job's FailureReason."""
        return self.output / "failure"

    @property
    def lock(self) -> Path:
        """Held by the process that trains here; see `training.run_lock`."""
        return self.output / "lock"

    def ensure_idle(self) -> None:
        """Raise RunBusyError while a process trains here, on the desk or in a container."""
        try:
            with self.lock.open() as lock:
                # Shared, so that those who only ask do not refuse each other.
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return
        except BlockingIOError as error:
            raise RunBusyError(self.root) from error

    def create(self) -> None:
        """Make the folders that a run writes to."""
        for folder in (self.model, self.output_data, self.tensorboard, self.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
