"""The server on the GPU: its answers, and its speed.

`python -m benchmarks.gpu.gpu_serving FOLDER cuda|cpu` prints both as JSON.
"""

from __future__ import annotations

import http.client
import json
import re
import shutil
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.sample_photographs import photographs
from benchmarks.serving.serve_contenders import Clients, Server, server, write_model
from entry_point.model_folder import load_model
from tests.entry_point.prediction.predicted import center_crop

TOLERANCES = {"fp32": 1e-3, "bf16": 2e-2}
"""Most difference of a probability from the CPU's in float32."""
CLIENTS = (1, 8, 64)


def measure(folder: Path, on_gpu: bool) -> dict[str, Any]:
    """Promise -> whether it holds, and what was found."""
    shutil.rmtree(folder, ignore_errors=True)
    model, photos = write_model(folder / "run"), folder / "photos"
    photos.mkdir()
    for number, photo in enumerate(photographs()):
        (photos / f"{number}.jpg").write_bytes(photo)
    found: dict[str, Any] = {}
    with closing(Clients()) as clients:
        for precision, tolerance in TOLERANCES.items():
            with server(model, precision, on_gpu=on_gpu) as ready:
                difference = float((_answers(ready, photos) - _cpu(model, photos)).abs().max())
                text = f"largest difference {difference:.2g}; at most {tolerance:g}; ResNet-18, "
                text += _speed(ready, photos, clients, 5.0 if on_gpu else 0.5)
                found[precision] = [difference <= tolerance, text]
                images, batches = batches_so_far(_get(ready, "/metrics"))
    found["batches"] = [images > batches, f"{images / batches:.3g} images a batch"]
    return found


def _speed(ready: Server, photos: Path, clients: Clients, seconds: float) -> str:
    found = []
    for count in CLIENTS:
        sent = clients.send(ready, photos, count, seconds)
        p50, p99 = 1e3 * np.percentile(sent.seconds, (50, 99))
        rate = f"{sent.per_second:.4g}/s, p50 {p50:.3g} ms, p99 {p99:.3g} ms"
        found.append(f"{count} clients: {rate}")
    return "; ".join(found)


def batches_so_far(metrics: str) -> tuple[float, float]:
    """Images and batches since the start."""
    names = ("serve_batch_images_sum", "serve_batch_images_count")
    images, batches = (re.findall(rf"^{name} (\S+)", metrics, re.M)[0] for name in names)
    return float(images), float(batches)


def _answers(ready: Server, photos: Path) -> torch.Tensor:
    """The server's probabilities `(N, classes)` of the photographs, one request each."""
    rows: list[Sequence[float]] = []
    for path in sorted(photos.iterdir()):
        answer = json.loads(_get(ready, "/invocations", path.read_bytes()))
        rows.append(list(answer["predictions"][0]["probabilities"].values()))
    return torch.tensor(rows)


def _cpu(model: Path, photos: Path) -> torch.Tensor:
    """The same from the model on the CPU."""
    loaded = load_model(model, torch.device("cpu"))
    size, resize = loaded.image_size, loaded.resize
    images = [center_crop(path.read_bytes(), size, resize) for path in sorted(photos.iterdir())]
    return loaded.predict(torch.stack(images))


def _get(ready: Server, path: str, body: bytes | None = None) -> str:
    """GET, or POST of a JPEG if there is a body."""
    with closing(http.client.HTTPConnection("127.0.0.1", ready.port)) as connection:
        method = "GET" if body is None else "POST"
        connection.request(method, path, body, {"Content-Type": "image/jpeg"})
        return connection.getresponse().read().decode()


if __name__ == "__main__":
    found = measure(Path(sys.argv[1]), sys.argv[2] == "cuda")
    sys.stdout.write(f"{json.dumps(found)}\n")
