"""Draws training samples: `python -m entry_point show-batch [output=FILE] [key=value ...]`.

Takes the settings of `make local-train` and trains nothing. The samples are the first of the first
epoch, as the model would get them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from entry_point.config.checking import check_config
from entry_point.config.config_errors import ConfigError, shown
from entry_point.config.schema import TYPED_HERE, FilePath
from entry_point.config.train_config import TrainConfig, load_train_config
from entry_point.job.program import ExitCode
from entry_point.job.run_folder import CONTAINER_ROOT, RunFolder
from entry_point.job.whole_file import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OUTPUT = "runs/samples.png"
_ENDINGS = (".png", ".jpg", ".svg")


def show(arguments: Sequence[str]) -> int:
    """Write the picture; returns the exit code. Raises ConfigError for an invalid file name."""
    given = [text for text in arguments if text.startswith("output=")]
    named = given[-1].partition("=")[2] if given else OUTPUT
    path = Path(check_config(named, FilePath, "output", TYPED_HERE))
    if path.suffix not in _ENDINGS:
        raise ConfigError("output", path, f"must be a file that ends in one of {shown(_ENDINGS)}")
    overrides = [text for text in arguments if text not in given]
    run = RunFolder(Path(os.environ.get("ML_ROOT") or CONTAINER_ROOT))
    config, _ = load_train_config(overrides, has_channels=run.has_data(overrides))
    figure = _draw(config, run)
    with replacing(path) as temporary:
        figure.savefig(temporary, format=path.suffix[1:], dpi=150)
    sys.stdout.write(f"{path}\n")
    return ExitCode.FINISHED


def _draw(config: TrainConfig, run: RunFolder) -> Figure:
    # Not above: a wrong setting is answered without importing torch.
    from entry_point.data.loader import open_training_set
    from entry_point.job.devices import join_devices
    from entry_point.training.expected_pixels import with_expected_pixels
    from entry_point.training.results.pictures import first_samples
    from entry_point.training.tasks.build_task import build_task

    dataset = open_training_set(config.data, run.channels)
    config = replace(config, data=dataset.data)
    with join_devices(config.trainer) as devices:
        with suppress(ConfigError):  # the weights may not exist yet
            config = with_expected_pixels(config, run, devices)
        train = dataset.source("train")
        task = build_task(config, train, devices.device)
        return first_samples(config, train, task, devices)


if __name__ == "__main__":
    from entry_point.__main__ import end_with

    end_with("show-batch")
