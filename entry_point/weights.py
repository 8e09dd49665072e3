"""Fetches published weights into the folder `pretrained`: `python -m entry_point weights NAME ...`.

A NAME is a model of torchvision or timm, as in `model.name`. The library's own downloader fetches
the file and verifies its checksum. Then `model.weights=pretrained` finds it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from entry_point.config.checking import check_config
from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import ModelConfig
from entry_point.job.program import NO_ROOM, ExitCode, UserError
from entry_point.job.run_folder import PRETRAINED
from entry_point.training.models import require_model
from entry_point.training.published_weights import Published, published


def fetch(names: Sequence[str]) -> int:
    """Fetch the weights of these models, unless they exist; returns the exit code.

    Raises ConfigError for a model without published weights, UserError without a network, and
    OSError for a full disk.
    """
    if not names:
        raise UserError("name a model, as in: make weights ARGS=resnet50")
    for name, found in [(name, _published(name)) for name in names]:
        file = Path(PRETRAINED, found.file)
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            if not file.is_file():
                found.fetch(file)
        except (OSError, RuntimeError) as error:
            if isinstance(error, OSError) and error.errno in NO_ROOM:
                raise OSError(error.errno, error.strerror, error.filename or str(file)) from error
            reason = " ".join(str(error).split())
            raise UserError(
                f"{found.url} cannot be fetched ({reason}); fetch it where there is a network, and "
                f"save it as {file}"
            ) from error
        sys.stdout.write(
            f"{file}: {file.stat().st_size / 1e6:.0f} MB; to train: make local-train "
            f'ARGS="experiment=finetune model.name={name} data.root=DIR"\n'
        )
    return ExitCode.FINISHED


def _published(name: str) -> Published:
    require_model(check_config({"name": name}, ModelConfig, "model"))
    found = published(name)
    if found is None:
        raise ConfigError("model.name", name, "has no published weights")
    return found


if __name__ == "__main__":
    from entry_point.__main__ import end_with

    end_with("weights")
