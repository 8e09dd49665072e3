"""A process in a job's place: `python -m tests.benchmarks.planted_job JSON`.

JSON has `metrics`, records that it writes as a training job does, `said`, which it prints, and how
it ends: `code`, or `hangs`.
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
        records = order["metrics"]
        assert isinstance(records, list)
        with (folder / "metrics.jsonl").open("w") as file:
            for record in records:
                print(json.dumps(record), file=file, flush=True)
                time.sleep(0.15)  # so that the processor's time is seen between two of them
    print(order.get("said", ""), flush=True)  # noqa: T201
    while order.get("hangs"):
        time.sleep(1)
    return int(str(order.get("code", 0)))


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
