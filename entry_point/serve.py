"""Answer requests with a finished model: `python -m entry_point serve [model_dir=DIR ...]`.

SageMaker runs it as `IMAGE serve`, with the model in /opt/ml/model. See docs/serving.md.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

from entry_point.config.serve_config import ServeConfig, load_serve_config
from entry_point.job.run_folder import CONTAINER_ROOT, RunFolder, require_model

_LATEST = Path("runs/latest/model")


def serve(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or Ctrl-C; returns the exit code."""
    config = load_serve_config(arguments)
    folder = model_folder(config)
    # By default, idle OpenMP threads spin, and take the cores from the decoding threads.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    logging.getLogger("uvicorn.access").setLevel(logging.INFO)

    from entry_point.serving.server import run_server

    return run_server(folder, config.serve)


def model_folder(config: ServeConfig) -> Path:
    """Returns the folder of the model; raises ContractError if there is none."""
    named = config.model_dir
    in_container = CONTAINER_ROOT.is_dir() or "ML_ROOT" in os.environ
    default = RunFolder.from_environment().model if in_container else _LATEST
    folder = Path(named) if named is not None else default
    require_model(folder)
    return folder.absolute()


if __name__ == "__main__":
    from entry_point.__main__ import end_with

    end_with("serve")
