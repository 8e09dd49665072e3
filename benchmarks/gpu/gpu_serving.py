"""The speed of the server on the GPU, and whether its requests share batches.

`python -m benchmarks.gpu.gpu_serving FOLDER cuda|cpu` prints both as JSON. That its answers are
those of the CPU is in the tests marked `gpu`.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sample_photographs import photographs
from benchmarks.serving.serve_contenders import Clients, server, write_model

CLIENTS = (1, 8, 64)


def measure(folder: Path, on_gpu: bool) -> dict[str, Any]:
    """Returns the images per batch, and the speed of each number of clients as text."""
    shutil.rmtree(folder, ignore_errors=True)
    model, photos = write_model(folder / "run"), folder / "photos"
    photos.mkdir()
    for number, photo in enumerate(photographs()):
        (photos / f"{number}.jpg").write_bytes(photo)
    speeds = []
    with closing(Clients()) as clients, server(model, "bf16", on_gpu=on_gpu) as ready:
        for count in CLIENTS:
            sent = clients.send(ready, photos, count, 5.0 if on_gpu else 0.5)
            p50, p99 = 1e3 * np.percentile(sent.seconds, (50, 99))
            rate = f"{sent.per_second:.4g}/s, p50 {p50:.3g} ms, p99 {p99:.3g} ms"
            speeds.append(f"{count} clients: {rate}")
        with urllib.request.urlopen(f"http://127.0.0.1:{ready.port}/metrics") as answer:
            metrics = answer.read().decode()
    images, batches = (
        float(re.findall(rf"^serve_batch_images_{name} (\S+)", metrics, re.M)[0])
        for name in ("sum", "count")
    )
    speed = f"ResNet-18 in bf16, {'; '.join(speeds)}"
    return {"images per batch": images / batches, "speed": speed}


if __name__ == "__main__":
    found = measure(Path(sys.argv[1]), sys.argv[2] == "cuda")
    sys.stdout.write(f"{json.dumps(found)}\n")
