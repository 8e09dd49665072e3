"""Contenders of the serving benchmark: this server, LitServe, and functions called without HTTP."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import ModuleType

import msgspec
import torch
import torchvision
from torch import nn

from benchmarks.pipelines.process_tree import cpu_seconds
from benchmarks.serving import http_clients
from benchmarks.serving.http_clients import Order, Sent
from entry_point.model_folder import load_model
from tests.entry_point.prediction.predicted import center_crop
from tests.entry_point.serving import served_model

CLASSES = 1000
SIZE = ("data.image_size=224", "data.resize=256")
_LONGEST_STOP_S = 30
Answer = Callable[[bytes], object]
"""The bytes of an image -> its prediction."""


@dataclass
class Round:
    """The result of a contender in a round."""

    per_second: float
    seconds: list[float]
    """Latency of each request."""
    cpu_ms: float
    """Per request: of the server, or of this process where there is none."""
    client_cpu_ms: float = field(default=float("nan"))
    loop_cpu_ms: float = field(default=float("nan"))
    """Per request: of the server's event loop, a part of `cpu_ms`."""


@dataclass(frozen=True)
class Server:
    """A server that is ready."""

    process: int
    port: int


def _main_thread_seconds(process: int) -> float:
    """CPU time of the thread that runs the event loop (Linux; elsewhere nan)."""
    times = Path(f"/proc/{process}/task/{process}/schedstat")
    return int(times.read_text().split()[0]) / 1e9 if times.exists() else math.nan


class Clients:
    """A process of HTTP clients, which all rounds share."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, http_clients.__file__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def send(self, server: Server, folder: Path, clients: int, seconds: float) -> Round:
        """Have `clients` connections send the files of `folder` for `seconds`."""
        before, loop_before = cpu_seconds(server.process), _main_thread_seconds(server.process)
        assert self._process.stdin is not None and self._process.stdout is not None
        order = Order(server.port, str(folder), clients, seconds)
        self._process.stdin.write(json.dumps(asdict(order)) + "\n")
        self._process.stdin.flush()
        sent = Sent(**json.loads(self._process.stdout.readline()))
        cpu, count = cpu_seconds(server.process) - before, len(sent.seconds)
        loop_cpu = _main_thread_seconds(server.process) - loop_before
        own = 1e3 * sent.cpu_seconds / count
        return Round(sent.per_second, sent.seconds, 1e3 * cpu / count, own, 1e3 * loop_cpu / count)

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def server(
    model: Path, precision: str = "fp32", *, on_gpu: bool = False
) -> AbstractContextManager[Server]:
    """Returns a server of the model in `model`; without `on_gpu` it does not see the GPUs."""
    port = _free_port()
    program = ["-m", "entry_point", "serve", f"model_dir={model}"]
    settings = [f"serve.port={port}", f"serve.precision={precision}"]
    return _running([*program, *settings], port, {} if on_gpu else {"CUDA_VISIBLE_DEVICES": ""})


def litserve(model: Path, engine: str) -> AbstractContextManager[Server]:
    """LitServe with the model in `model`, see litserve_app.py."""
    port = _free_port()
    program = ["-m", "benchmarks.serving.litserve_app", engine, str(model), str(port)]
    return _running(program, port, {})


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def _running(command: list[str], port: int, environment: dict[str, str]) -> Iterator[Server]:
    process = subprocess.Popen(
        [sys.executable, *command],
        env=os.environ | environment,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while not _is_ready(port):
            assert process.poll() is None
            time.sleep(0.01)
        yield Server(process.pid, port)
    finally:
        # LitServe's processes do not end with the one that started them.
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(_LONGEST_STOP_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ping") as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def write_model(root: Path) -> Path:
    """Returns the model folder of a ResNet-18 with random weights."""
    names = [f"class {number}" for number in range(CLASSES)]
    return served_model.write_model(root, *SIZE, "model.name=resnet18", classes=names)


FREE_MODEL = """
from torch import nn

class FreeModel(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.head = nn.Linear(3, num_classes)

    def forward(self, images):
        return self.head(images[:, :, 0, 0].float())
"""


def write_free_model(root: Path) -> Path:
    """Returns the model folder of a model that costs nothing: it looks at one pixel."""
    network = nn.Module()
    network.head = nn.Linear(3, len(served_model.CLASSES))
    settings = (*SIZE, "model.name=project.net.FreeModel")
    return served_model.write_model(root, *settings, network=network, code=FREE_MODEL)


def export_onnx(folder: Path) -> None:
    """Write the model in `folder` to `folder`/model.onnx."""
    model = load_model(folder, torch.device("cpu"))
    images = torch.zeros(2, 3, model.image_size, model.image_size, dtype=torch.uint8)
    torch.onnx.export(
        model.answers,
        (images,),
        folder / "model.onnx",
        input_names=["images"],
        dynamic_shapes=({0: "batch"},),
        verbose=False,
    )


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
    """Returns the model as it was trained, and Pillow."""
    loaded = load_model(model, torch.device("cpu"))

    def answer(body: bytes) -> object:
        pixels = center_crop(body, loaded.image_size, loaded.config.data.resize)
        prediction = loaded.task.describe(loaded.predict(pixels[None])[0], (0, 0), None)
        return msgspec.json.encode({"predictions": [prediction]})

    return answer


def torchserve() -> Answer:
    """Returns the steps of TorchServe's own image classifier."""
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
