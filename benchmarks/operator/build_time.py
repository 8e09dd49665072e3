"""Cold and warm start of the operator, each in a process of its own.

`python -m benchmarks.operator.build_time` prints and writes docs/results/op-build.md.
"""

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
    """What build_info() says in a new process, and the CPU seconds that process took."""
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, "CUSTOM_OP_CACHE": cache},
        stdout=subprocess.PIPE,
        check=True,
    )
    info: dict[str, Any] = json.loads(done.stdout)
    after = os.times()
    used = (after.children_user + after.children_system) - (
        before.children_user + before.children_system
    )
    return {**info, "cpu_seconds": used}


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
        ("CPU seconds of compiling", statistics.median(compiling)),
    ]
    method = (
        f"Seconds of load() after importing torch, by the clock, median of {ROUNDS}. "
        f"{info['compiler']}, libjpeg-turbo {info['libjpeg_turbo']}."
    )
    title = "Building the operator at job start"
    sys.stdout.write(
        measure.write("op-build", title, method, [measure.table(("start", "seconds"), rows)])
    )


if __name__ == "__main__":
    main()
