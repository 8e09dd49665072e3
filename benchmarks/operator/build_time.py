"""The operator's cold and warm start, each in a new process: docs/results/op-build.md."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Any

from benchmarks import measure

ROUNDS = 3
CODE = "import json, custom_op; print(json.dumps(custom_op.build_info()))"


def build_info(cache: str) -> dict[str, Any]:
    """Returns the build_info() of a new process, with that process's CPU seconds."""
    before = measure.cpu_seconds()
    environment = {**os.environ, "CUSTOM_OP_CACHE": cache}
    output = subprocess.check_output([sys.executable, "-c", CODE], env=environment)
    return {**json.loads(output), "cpu_seconds": measure.cpu_seconds() - before}


def main() -> None:
    cold, warm, compiling = [], [], []
    for _ in range(ROUNDS):
        with tempfile.TemporaryDirectory() as cache:
            info, again = build_info(cache), build_info(cache)
            cold.append(info["load_seconds"])
            warm.append(again["load_seconds"])
            compiling.append(info["cpu_seconds"] - again["cpu_seconds"])
    rows = [
        ("cold: compile and load", statistics.median(cold)),
        ("warm: load", statistics.median(warm)),
        ("compile, CPU seconds", statistics.median(compiling)),
    ]
    method = (
        f"Seconds of load() after torch is imported: wall-clock time, median of {ROUNDS}. "
        f"{info['compiler']}, libjpeg-turbo {info['libjpeg_turbo']}."
    )
    table = measure.table(("start", "seconds"), rows)
    title = "Building the operator at job start"
    sys.stdout.write(measure.write("op-build", "op", title, method, [table]))


if __name__ == "__main__":
    main()
