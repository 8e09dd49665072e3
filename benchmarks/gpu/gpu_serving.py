"""Part 5: the server on the GPU: its answers, and its speed."""

from __future__ import annotations

import http.client
import json
import re
import shutil
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import torch

from benchmarks.gpu.gpu_part import Part
from benchmarks.gpu.gpu_plan import Check
from benchmarks.sample_photographs import photographs
from benchmarks.serving.serve_contenders import Clients, Server, server, write_model
from entry_point import inference

TOLERANCES = {"fp32": 1e-3, "bf16": 2e-2}
"""Most difference of a probability from the CPU's in float32."""
CLIENTS = (1, 8, 64)


def serving_part(check: Check) -> Part:
    part = Part()
    folder = check.folder / "serving"
    shutil.rmtree(folder, ignore_errors=True)
    model, photos = write_model(folder / "run"), folder / "photos"
    photos.mkdir()
    for number, photo in enumerate(photographs()):
        (photos / f"{number}.jpg").write_bytes(photo)
    with closing(Clients()) as clients:
        for precision, tolerance in TOLERANCES.items():
            with server(model, precision, on_gpu=check.on_gpu) as ready:
                _compare(part, precision, tolerance, _answers(ready, photos), _cpu(model, photos))
                _measure(check, part, precision, ready, photos, clients)
    return part


def _compare(
    part: Part, precision: str, tolerance: float, found: torch.Tensor, expected: torch.Tensor
) -> None:
    difference = float((found - expected).abs().max())
    promise = f"The server answers in {precision} as the program on the CPU, within {tolerance:g}"
    part.add(promise, difference <= tolerance, f"largest difference {difference:.2g}")


def _measure(
    check: Check, part: Part, precision: str, ready: Server, photos: Path, clients: Clients
) -> None:
    seconds = 5.0 if check.on_gpu else 0.5
    found = []
    for count in CLIENTS:
        sent = clients.send(ready, photos, count, seconds)
        p50, p99 = 1e3 * np.percentile(sent.seconds, (50, 99))
        found.append(
            f"{count} clients: {sent.per_second:.4g}/s, p50 {p50:.3g} ms, p99 {p99:.3g} ms"
        )
    part.facts[f"ResNet-18 served in {precision}"] = "; ".join(found)
    images, batches = batches_so_far(_get(ready, "/metrics"))
    part.add(
        f"Requests to the server in {precision} share batches",
        images > batches if check.on_gpu else None,
        f"{images / batches:.3g} images a batch",
    )


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
    """The same from the exported program on the CPU."""
    program = inference.load_program(model / inference.PROGRAM, torch.device("cpu"), "")
    settings = json.loads((model / inference.SETTINGS).read_text(encoding="utf-8"))
    images = [
        inference.prepare(
            inference.read_image(path.read_bytes()), settings["image_size"], settings["resize"]
        )
        for path in sorted(photos.iterdir())
    ]
    with torch.inference_mode():
        answers: torch.Tensor = program(torch.stack(images))
    return answers


def _get(ready: Server, path: str, body: bytes | None = None) -> str:
    """GET, or POST of a JPEG if there is a body."""
    with closing(http.client.HTTPConnection("127.0.0.1", ready.port)) as connection:
        method = "GET" if body is None else "POST"
        connection.request(method, path, body, {"Content-Type": "image/jpeg"})
        return connection.getresponse().read().decode()
