"""A process in a job's place: `python -m tests.benchmarks.planted_job JSON`.

JSON has `metrics`, which it writes as a training job does, `said`, which it prints, and how it
ends: `code`, or `hangs`, or `signal`.
"""

import json
import os
import sys
import time
from pathlib import Path


def main(order: dict[str, object]) -> int:
    if "metrics" in order:
        folder = Path(os.environ["ML_ROOT"], "output", "data")
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text(json.dumps(order["metrics"]) + "\n")
    print(order.get("said", ""), flush=True)  # noqa: T201
    while order.get("hangs"):
        time.sleep(1)
    if "signal" in order:
        os.kill(os.getpid(), int(str(order["signal"])))
    return int(str(order.get("code", 0)))


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
