"""The training program, fed by others' loaders.

`python -m benchmarks.gpu.peer_jobs PEER data.root=FOLDER OVERRIDES`, with a key of LOADERS. They
read plain files; validation has this template's loader.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.pipelines.peers import PeerLoader
from entry_point import train
from entry_point.data.loader import Loader
from entry_point.data.loader_spec import LoaderSpec
from entry_point.training import trainer
from entry_point.training.input import TrainingInput, loader_spec


def _dali(root: Path, spec: LoaderSpec, steps: int, *, on_gpu: bool = True) -> Loader:
    from benchmarks.pipelines.dali_reader import DaliReader

    return DaliReader(root, spec, steps, on_gpu=on_gpu)


LOADERS: dict[str, Callable[[Path, LoaderSpec, int], Loader]] = {
    "dali-gpu": _dali,
    "dali-cpu": partial(_dali, on_gpu=False),
    "torchcodec": partial(PeerLoader, "torchcodec"),
    "torchvision": partial(PeerLoader, "imagefolder"),
}


def main(arguments: list[str]) -> int:
    """Trains as `train` does; returns its exit code."""
    peer, *overrides = arguments

    class FedByPeer(TrainingInput):
        def __init__(self, *of_trainer: Any) -> None:
            super().__init__(*of_trainer)
            root, spec = self._config.data.root, loader_spec(self._config, self._devices, "train")
            steps = self.train_loader.steps_per_epoch
            self.train_loader = LOADERS[peer](Path(str(root)), spec, steps)

    trainer.TrainingInput = FedByPeer  # type: ignore[attr-defined,assignment]
    return train.main(overrides)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
