"""Requests per second and latency of `serve`: docs/results/serving.md.

The server runs as its own process, and so do its clients, which send over HTTP as fast as they get
answers. The others are called in this process, without HTTP, one request after another: their
requests per second are the same for any number of clients.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from types import ModuleType

# As `serve` sets it: OpenMP's idle threads would take the cores from others.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import numpy as np
import torch
import torchvision
from torch import nn

from benchmarks import measure
from benchmarks.sample_photographs import photographs
from entry_point import inference
from entry_point.config.train_config import load_train_config
from entry_point.contract.run_folder import RunFolder
from entry_point.training.results.model_files import save_model, save_program
from entry_point.training.tasks.task import Export

CLIENTS = (1, 8, 64)
SECONDS, ROUNDS = 6.0, 3
SIZES = {"533x800": (533, 800), "3000x4000": (3000, 4000)}
CLASSES = 1000
PRECISIONS = ("fp32", "bf16")
Measured = tuple[float, list[float]]
"""Requests per second, and the seconds of each request."""
OURS, PLAIN, TORCHSERVE = "this, serve, {}", "Pillow, one at a time", "TorchServe's handler"


def write_model(root: Path) -> Path:
    """The model folder of a ResNet-18 with random weights."""
    run = RunFolder(root)
    run.model.mkdir(parents=True)
    config, yaml = load_train_config(["data=folder"])
    # As training leaves it.
    model = torchvision.models.resnet18(num_classes=CLASSES).to(memory_format=torch.channels_last)
    save_model(run, model, [f"class {number}" for number in range(CLASSES)], yaml)
    save_program(run, model, config.data, Export("classification", nn.Softmax(1)))
    return run.model


@contextmanager
def server(model: Path, precision: str = "fp32") -> Iterator[int]:
    """A server that is ready; yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "entry_point.container", "serve", f"model_dir={model}"]
    settings = [f"serve.port={port}", f"serve.precision={precision}"]
    process = subprocess.Popen([*command, *settings], stdout=subprocess.DEVNULL)
    try:
        while not is_ready(port):
            assert process.poll() is None
            time.sleep(0.01)
        yield port
    finally:
        process.terminate()
        process.wait()


def is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ping") as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


async def client(port: int, bodies: list[bytes], first: int, end: float) -> list[float]:
    """Send one request after another on one connection; returns their seconds."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    seconds: list[float] = []
    while not seconds or time.monotonic() < end:
        body = bodies[(first + len(seconds)) % len(bodies)]
        lines = ("POST /invocations HTTP/1.1", "Host: x", "Content-Type: image/jpeg",
                 "Accept: text/csv", f"Content-Length: {len(body)}", "", "")  # fmt: skip
        started = time.monotonic()
        writer.write("\r\n".join(lines).encode() + body)
        header = await reader.readuntil(b"\r\n\r\n")
        length = header.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length))
        assert header.startswith(b"HTTP/1.1 200 "), header
        seconds.append(time.monotonic() - started)
    writer.close()
    return seconds


def send(port: int, folder: str, clients: int, duration: float) -> None:
    """Be the clients, in a process of their own; print requests per second and latencies."""
    bodies = [path.read_bytes() for path in sorted(Path(folder).iterdir())]

    async def all_clients() -> list[list[float]]:
        end = time.monotonic() + duration
        return await asyncio.gather(*(client(port, bodies, i, end) for i in range(clients)))

    started = time.monotonic()
    seconds = [each for found in asyncio.run(all_clients()) for each in found]
    rate = len(seconds) / (time.monotonic() - started)
    sys.stdout.write(json.dumps({"rate": rate, "seconds": seconds}))


def from_clients(
    port: int, folder: Path, clients: int, duration: float
) -> tuple[float, list[float]]:
    command = [sys.executable, "-m", "benchmarks.serving", "send", str(port), str(folder)]
    done = subprocess.run(
        [*command, str(clients), str(duration)], stdout=subprocess.PIPE, text=True, check=True
    )
    found = json.loads(done.stdout)
    return found["rate"], found["seconds"]


def in_process(answer: Callable[[bytes], object], folder: Path) -> Measured:
    """Requests per second and latencies of a function."""
    bodies = [path.read_bytes() for path in sorted(folder.iterdir())]
    answer(bodies[0])
    seconds: list[float] = []
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        started = time.monotonic()
        answer(bodies[len(seconds) % len(bodies)])
        seconds.append(time.monotonic() - started)
    return len(seconds) / sum(seconds), seconds


def plain(model: Path) -> Callable[[bytes], object]:
    """What SageMaker's toolkit does with code/inference.py."""
    loaded = inference.model_fn(str(model))

    def answer(body: bytes) -> str:
        images = inference.input_fn(body, "image/jpeg")
        return inference.output_fn(inference.predict_fn(images, loaded), "text/csv")

    return answer


def torchserve() -> Callable[[bytes], object] | None:
    """The steps of TorchServe's own image classifier; None if it is not installed."""
    # Only its explanations need captum.
    captum = ModuleType("captum.attr")
    captum.IntegratedGradients = None  # type: ignore[attr-defined]
    sys.modules |= {"captum": captum, "captum.attr": captum}
    try:
        from ts.torch_handler.image_classifier import ImageClassifier
    except ImportError:
        return None
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


def row(name: str, clients: object, rounds: list[Measured]) -> list[object]:
    seconds = np.concatenate([found for _, found in rounds])
    p50, p99 = (float(1e3 * np.percentile(seconds, percent)) for percent in (50, 99))
    rate = float(np.median([found for found, _ in rounds]))
    return [name, clients, rate, p50, p99]


def measure_size(folder: Path, model: Path) -> list[list[object]]:
    """The table's rows for the images in `folder`."""
    others = {PLAIN: plain(model), TORCHSERVE: torchserve()}
    found: dict[tuple[str, object], list[Measured]] = {}
    with ExitStack() as servers:
        ports = {kind: servers.enter_context(server(model, kind)) for kind in PRECISIONS}
        for _ in range(ROUNDS):
            for (kind, port), clients in product(ports.items(), CLIENTS):
                rounds = found.setdefault((OURS.format(kind), clients), [])
                rounds.append(from_clients(port, folder, clients, SECONDS))
            for name, answer in others.items():
                if answer is not None:
                    found.setdefault((name, "in process"), []).append(in_process(answer, folder))
    return [row(name, clients, rounds) for (name, clients), rounds in found.items()]


def first_requests(folder: Path, model: Path) -> list[list[object]]:
    """The first request after /ping answers 200, and the median of the next ones, in ms."""
    rows: list[list[object]] = []
    for number in range(ROUNDS):
        with server(model) as port:
            _, seconds = from_clients(port, folder, 1, 3)
        median = float(np.median(seconds[1:]))
        rows.append([number + 1, 1e3 * seconds[0], 1e3 * median, seconds[0] / median])
    return rows


def main() -> None:
    """Measure, and write the page."""
    header = ("contender", "clients", "requests/s", "p50, ms", "p99, ms")
    tables = []
    with tempfile.TemporaryDirectory() as name:
        model = write_model(Path(name, "run"))
        for title, (height, width) in SIZES.items():
            folder = Path(name, title)
            folder.mkdir()
            for number, photo in enumerate(photographs(height, width)):
                (folder / f"{number}.jpg").write_bytes(photo)
            rows = measure_size(folder, model)
            tables.append(f"JPEGs of {title} pixels:\n\n{measure.table(header, rows)}")
        started = ("start", "first request, ms", "median of the next, ms", "ratio")
        tables.append(measure.table(started, first_requests(Path(name, "533x800"), model)))
    method = (
        "ResNet-18 at 224 pixels on the CPU, the others in float32, other settings at their "
        "defaults, for all with OMP_WAIT_POLICY=PASSIVE, which `serve` sets. `serve` runs as "
        "a process with HTTP clients in another, on the same cores. The others are called in "
        "process, without HTTP, one request after another, so that their requests/s hold for any "
        f"number of clients. Median of {ROUNDS} alternating rounds of {SECONDS:g} s, latencies "
        "over all. Goals: 2x the requests/s at 64 clients, p99 at 1 client not above the plain "
        "way's, the first request at most 2x the median."
    )
    packages = ("starlette", "uvicorn", "torchserve", "pillow")
    sys.stdout.write(measure.write("serving", "serve", "Serving", method, tables, packages))


if __name__ == "__main__":
    if sys.argv[1:2] == ["send"]:
        send(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
    else:
        main()
