"""Real server processes, and requests to them."""

import base64
import http.client
import io
import json
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

from entry_point.config.train_config import load_train_config
from entry_point.model_folder import read_code, save_model
from entry_point.training.models import build_model
from project.models import small_net
from tests import forkserver
from tests.entry_point.training.tasks.label_sources import labels, task_of

PATIENCE_S = 120.0
CLASSES = ["cat, big", "dog", "fish"]
PAIRS = torch.tensor([[1.0, 0, 1], [0, 1, 0]])
LABELS = {
    "class": torch.arange(3),
    "labels": PAIRS,
    "numbers": 1e6 * PAIRS,
    "targets": torch.arange(3),
}
SMALL = ("data=folder", "data.image_size=32", "data.resize=36")
NETWORK = ("model.name=project.models.small_net", "model.kwargs.width=8")
SLOW = """
import time
from pathlib import Path
from torch import nn
from project.models import small_net

class slow_net(nn.Module):
    def __init__(self, num_classes, go):
        super().__init__()
        self.net, self.go = small_net(num_classes, width=8), Path(go)

    def forward(self, images):
        if images.std(dim=2).max() > 0.001:  # not of the warm-up
            with (self.go.parent / "started").open("a") as batches:
                batches.write("1")
            while not self.go.exists():
                time.sleep(0.01)
        return self.net(images)
"""


def write_model(
    root: Path,
    *overrides: str,
    kind: str = "class",
    network: nn.Module | None = None,
    code: str | None = None,
    reached: str | None = None,
    classes: list[str] = CLASSES,
) -> Path:
    """The model folder of a run on 32 pixels, with a small network unless `overrides` name one.

    `kind`: of the labels. `network`: another than that of the configuration. `code`: of the file
    `project/net.py` in the folder, for what `overrides` name of it. `reached`: by the run.
    `classes`: others need the kind `class`.
    """
    folder = root / "model"
    folder.mkdir(parents=True)
    named = any(each.startswith("model.name=") for each in overrides)
    settings = [*SMALL, *(() if named else NETWORK), *overrides]
    config, yaml = load_train_config(settings)
    values = torch.arange(len(classes)) if kind == "class" else LABELS[kind]
    task = task_of(labels(kind, classes, values), *settings)
    torch.manual_seed(0)
    network = network or build_model(config.model, task.outputs, image_size=32)
    own = read_code(config)
    save_model(folder, network.state_dict(), task, classes, yaml, own, reached)
    if code is not None:
        (folder / "code/project").mkdir(parents=True, exist_ok=True)
        (folder / "code/project/__init__.py").touch()
        (folder / "code/project/net.py").write_text(code)
    return folder


def write_slow_model(root: Path) -> tuple[Path, Path]:
    """A model folder whose network waits, in each batch but those of the warm-up, until there is a
    file: the folder, and the path of that file. Before, it writes a 1 into `root/started`."""
    network = nn.Module()
    network.net = small_net(len(CLASSES), width=8)
    settings = ("model.name=project.net.slow_net", f"model.kwargs.go={root / 'go'}")
    return write_model(root, *settings, network=network, code=SLOW), root / "go"


def encoded(kind: str = "JPEG", size: tuple[int, int] = (50, 40), mode: str = "RGB") -> bytes:
    """An image of noise."""
    out = io.BytesIO()
    Image.effect_noise(size, 60).convert(mode).save(out, kind)
    return out.getvalue()


def as_json(images: Sequence[bytes]) -> str:
    """The body of a request with these images."""
    return json.dumps({"instances": [base64.b64encode(image).decode() for image in images]})


ALONE = ("serve.workers=1", "serve.max_batch=1")
"""The model computes one image at a time."""


def head(length: int | None, *lines: str) -> bytes:
    """A request's headers; without a length the body is chunked."""
    size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    fields = ["POST /invocations HTTP/1.1", "Host: x", "Content-Type: image/jpeg", size, *lines]
    return "\r\n".join([*fields, "", ""]).encode()


def read_answer(connection: socket.socket) -> bytes:
    """Everything until the server closes the connection."""
    received = b""
    try:
        while chunk := connection.recv(65536):
            received += chunk
    except ConnectionResetError:
        pass
    return received


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Served:
    """A server process on a port of 127.0.0.1."""

    process: forkserver.Program
    log_file: Path
    port: int

    def log(self) -> str:
        return self.log_file.read_text()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.ping() != 200:
            assert self.process.poll() is None and time.monotonic() < deadline, self.log()
            time.sleep(0.05)

    def ping(self) -> int | None:
        """The status of /ping; None if no connection is accepted."""
        try:
            return self.request("GET", "/ping").status
        except ConnectionError:
            return None

    def settle(self) -> None:
        """Return when the server has read what was sent before, on connections made before."""
        for _ in range(2):
            assert self.ping() == 200

    def has_room(self) -> bool:
        """Whether the queue takes one more request."""
        return self.invoke(b"damaged").status == 400

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = PATIENCE_S,
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            headers = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, headers, response.read())
        finally:
            connection.close()

    def invoke(self, body: Any, kind: str = "image/jpeg", **headers: str) -> Answer:
        """POST to /invocations; an underscore in a header's name becomes a hyphen."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.request("POST", "/invocations", body, {"Content-Type": kind, **named})

    def try_invoke(self, body: bytes) -> int | None:
        """The status; None if the server closed the connection while the body was sent."""
        try:
            return self.invoke(body).status
        except ConnectionError:
            return None

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE_S)

    def memory_mb(self) -> float:
        """Resident memory of the process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) / 1024


# Starts the server with other constants, as in server.DRAIN_S=1.
_WITH_CONSTANTS = """
import importlib, json, sys
for name, value in json.loads(sys.argv[1]).items():
    module, _, constant = name.partition(".")
    found = importlib.import_module("entry_point.serving." + module)
    assert hasattr(found, constant), name
    setattr(found, constant, value)
from entry_point.__main__ import main
from entry_point.job.program import end_process
end_process(main(sys.argv[2:]))
"""


@contextmanager
def serving(
    log: Path,
    overrides: Sequence[str],
    environment: Mapping[str, str],
    constants: Mapping[str, float] | None = None,
) -> Iterator[Served]:
    """Start the command `serve`; kills it at the end if it still runs.

    `constants`: other values for those of `entry_point/serving`, as in `{"app.BODY_S": 1}`.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    program = ["-c", _WITH_CONSTANTS, json.dumps(constants)] if constants else None
    arguments = [*(program or ["-m", "entry_point"]), "serve", "serve.host=127.0.0.1"]
    process = forkserver.start(
        [*arguments, f"serve.port={port}", *overrides], log, environment=environment
    )
    try:
        yield Served(process, log, port)
    finally:
        process.kill()
        process.wait()
