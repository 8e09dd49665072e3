"""What a SageMaker training container runs: `python -m entry_point.container train [overrides]`.

Its first act is to hear SIGTERM, which the kernel drops for a container's first process that does
not; only then it imports the program that the word means. The same program runs on the desk:
`ML_ROOT` names another root than /opt/ml.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import FrameType

from entry_point.contract import exit_codes
from entry_point.supervisor import hand_over

PROGRAMS = {
    "train": "entry_point.supervisor.job",
    "optimize": "entry_point.optimize",
    "predict": "entry_point.predict",
    "check-dataset": "entry_point.check_dataset",
    "env": "entry_point.supervisor.environment_report",
}


def main(arguments: Sequence[str]) -> int:
    """Command line: a word, then Hydra overrides.

    SageMaker's toolkit runs this file as a script, with the hyperparameters once more as options,
    if there are any; the file that they come from is read anyway.
    """
    as_script = arguments[0].startswith("--") if arguments else _in_a_job()
    word, *overrides = ["train"] if as_script else [*arguments] or [""]
    if word not in PROGRAMS:
        sys.stderr.write(
            f"usage: python -m entry_point.container {'|'.join(PROGRAMS)} [Hydra overrides]\n"
        )
        return exit_codes.USAGE
    _hear_stop(exit_codes.STOPPED if word == "train" else exit_codes.TERMINATED)
    os.environ[hand_over.STARTED] = repr(time.time())
    return int(import_module(PROGRAMS[word]).main(overrides))


def _in_a_job() -> bool:
    return Path(os.environ.get("ML_ROOT", "/opt/ml"), "input/config/resourceconfig.json").exists()


def _hear_stop(code: int) -> None:
    """End with `code` on SIGTERM, the open files and temporary folders let go of in order; a job
    that has its trainer running listens for itself."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        sys.exit(code)

    signal.signal(signal.SIGTERM, stop)
    if code == exit_codes.STOPPED:
        signal.signal(signal.SIGINT, stop)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
