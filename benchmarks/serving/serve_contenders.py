"""What the serving benchmark compares: this server, and functions that are called without HTTP."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType
from typing import cast

import torch
import torchvision

from benchmarks.pipelines.process_tree import cpu_seconds
from benchmarks.serving import http_clients
from benchmarks.serving.http_clients import Order, Sent
from entry_point.config.train_config import load_train_config
from entry_point.data.sources.source import Source
from entry_point.model_folder import load_model, save_model
from entry_point.serving import formats
from entry_point.training.models import build_model
from entry_point.training.tasks.build_task import build_task
from tests.entry_point.prediction.predicted import center_crop

CLASSES = 1000
Answer = Callable[[bytes], object]
"""The bytes of an image -> its prediction."""


@dataclass
class Round:
    """What one contender did in one round."""

    per_second: float
    seconds: list[float]
    """Of each request."""
    cpu_ms: float
    """Per request: of the server, or of this process where there is none."""
    client_cpu_ms: float = field(default=float("nan"))


@dataclass(frozen=True)
class Server:
    """A server that is ready."""

    process: int
    port: int


class Clients:
    """A process of HTTP clients, which all rounds share."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, http_clients.__file__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def send(self, server: Server, folder: Path, clients: int, seconds: float) -> Round:
        """Have `clients` connections send the files of `folder` for `seconds`."""
        before = cpu_seconds(server.process)
        assert self._process.stdin is not None and self._process.stdout is not None
        order = Order(server.port, str(folder), clients, seconds)
        self._process.stdin.write(json.dumps(asdict(order)) + "\n")
        self._process.stdin.flush()
        sent = Sent(**json.loads(self._process.stdout.readline()))
        cpu, count = cpu_seconds(server.process) - before, len(sent.seconds)
        client_cpu_ms = 1e3 * sent.cpu_seconds / count
        return Round(sent.per_second, sent.seconds, 1e3 * cpu / count, client_cpu_ms)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


@contextmanager
def server(model: Path, precision: str = "fp32", *, on_gpu: bool = False) -> Iterator[Server]:
    """A server of the model in `model`; without `on_gpu` it does not see the GPUs."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "entry_point.container", "serve", f"model_dir={model}"]
    settings = [f"serve.port={port}", f"serve.precision={precision}"]
    hidden = {} if on_gpu else {"CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(
        [*command, *settings], env={**os.environ, **hidden}, stdout=subprocess.DEVNULL
    )
    try:
        while not _is_ready(port):
            assert process.poll() is None
            time.sleep(0.01)
        yield Server(process.pid, port)
    finally:
        process.terminate()
        process.wait()


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ping") as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def write_model(root: Path) -> Path:
    """The model folder of a ResNet-18 with random weights."""
    folder = root / "model"
    folder.mkdir(parents=True)
    config, yaml = load_train_config(["data=folder"])
    names = [f"class {number}" for number in range(CLASSES)]
    task = build_task(config, cast(Source, _Names(names)), torch.device("cpu"))
    save_model(folder, build_model(config.model, CLASSES), task, names, config, yaml)
    return folder


@dataclass(frozen=True)
class _Names:
    """A dataset of one image per class, without the images."""

    classes: list[str]
    kind: str = "class"
    labels: torch.Tensor = field(default_factory=lambda: torch.arange(CLASSES))

    def __len__(self) -> int:
        return len(self.classes)


def in_process(answer: Answer, folder: Path, duration: float) -> Round:
    """Call a function with one file of `folder` after another for `duration` seconds."""
    bodies = [path.read_bytes() for path in sorted(folder.iterdir())]
    answer(bodies[0])
    seconds: list[float] = []
    end, cpu = time.monotonic() + duration, time.process_time()
    while time.monotonic() < end:
        started = time.monotonic()
        answer(bodies[len(seconds) % len(bodies)])
        seconds.append(time.monotonic() - started)
    cpu_ms = 1e3 * (time.process_time() - cpu) / len(seconds)
    return Round(len(seconds) / sum(seconds), seconds, cpu_ms)


def plain(model: Path) -> Answer:
    """The model as it was trained, and Pillow."""
    loaded = load_model(model, torch.device("cpu"))

    def answer(body: bytes) -> object:
        pixels = center_crop(body, loaded.image_size, loaded.resize)
        prediction = formats.describe(loaded.predict(pixels[None])[0], loaded)
        return formats.format_predictions([prediction], formats.JSON)

    return answer


def torchserve() -> Answer:
    """The steps of TorchServe's own image classifier."""
    # Only its explanations need captum.
    captum = ModuleType("captum.attr")
    captum.IntegratedGradients = None  # type: ignore[attr-defined]
    sys.modules |= {"captum": captum, "captum.attr": captum}
    from ts.torch_handler.image_classifier import ImageClassifier

    handler = ImageClassifier()
    handler.model = torchvision.models.resnet18(num_classes=CLASSES).eval()
    handler.device, handler.context = torch.device("cpu"), None

    def answer(body: bytes) -> object:
        # Without the decorator that reports to TorchServe's frontend.
        steps = [
            getattr(type(handler), name) for name in ("preprocess", "inference", "postprocess")
        ]
        data: object = [{"body": body}]
        for step in steps:
            data = getattr(step, "__wrapped__", step)(handler, data)
        return data

    return answer
