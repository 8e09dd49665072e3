"""How a server starts, stops and refuses to start."""

import io
import os
import signal
import socket
import threading
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

from entry_point.config.serve_config import ServerConfig
from entry_point.job.program import ExitCode
from entry_point.serving.server import address_of
from project.models import small_net
from tests import commands
from tests.entry_point.serving.conftest import Serve
from tests.entry_point.serving.served_model import (
    ALONE,
    PATIENCE_S,
    encoded,
    head,
    read_answer,
    wait_for,
    write_model,
    write_slow_model,
)

LONGEST_STOP_S = 25
LONGEST_PING_S = 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_answers_the_requests_that_were_accepted(
    number: signal.Signals, serve: Serve, tmp_path: Path
) -> None:
    model, go = write_slow_model(tmp_path)
    server = serve(f"model_dir={model}", *ALONE)
    image = encoded()
    with ExitStack() as connections:
        clients = [connections.enter_context(closing(server.connect())) for _ in range(4)]
        for client in clients:
            client.sendall(head(len(image)) + image)
        server.settle()
        server.process.send_signal(number)
        wait_for(lambda: server.ping() is None)  # it no longer accepts
        go.touch()
        for client in clients:
            assert read_answer(client).startswith(b"HTTP/1.1 200 ")
    assert server.process.wait(LONGEST_STOP_S) == ExitCode.FINISHED, server.log()


def test_a_stop_does_not_wait_for_silent_idle_and_stalled_clients(
    serve: Serve, served_model: Path
) -> None:
    server = serve(f"model_dir={served_model}", constants={"server.DRAIN_S": 1})
    silent, idle, stalled = (server.connect() for _ in range(3))
    idle.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
    assert idle.recv(1)
    stalled.sendall(head(1000))
    assert server.invoke(encoded()).status == 200
    server.process.terminate()
    assert server.process.wait(LONGEST_STOP_S) == ExitCode.FINISHED
    assert silent.recv(1) == b""
    assert stalled.recv(65536).startswith(b"HTTP/1.1 503 ")
    assert "Traceback" not in server.log()
    for connection in (silent, idle, stalled):
        connection.close()


def test_a_hanging_model_does_not_keep_the_server_from_ending(serve: Serve, tmp_path: Path) -> None:
    model, _ = write_slow_model(tmp_path)
    server = serve(f"model_dir={model}", constants={"server.DRAIN_S": 1})
    with server.connect() as connection:
        connection.sendall(head(len(image := encoded())) + image)
        wait_for(lambda: (tmp_path / "started").exists())
        server.process.terminate()
        assert server.process.wait(LONGEST_STOP_S) == ExitCode.FINISHED


SLOW_LOAD = """
import pathlib, time
from project.models import small_net

def net(num_classes):
    pathlib.Path("LOADS").touch()
    while True:
        time.sleep(0.01)
    return small_net(num_classes, width=8)
"""


def test_a_server_that_loads_accepts_nothing_and_can_be_stopped(
    serve: Serve, tmp_path: Path
) -> None:
    """A health check sees it once it has answered."""
    network = small_net(3, width=8)
    code = SLOW_LOAD.replace("LOADS", str(tmp_path / "loads"))
    model = write_model(tmp_path, "model.name=project.net.net", network=network, code=code)
    server = serve(f"model_dir={model}", becomes_ready=False)
    wait_for((tmp_path / "loads").exists)
    assert server.ping() is None
    server.process.terminate()
    assert server.process.wait(LONGEST_STOP_S) == ExitCode.FINISHED, server.log()


def test_ping_answers_while_every_core_computes(serve: Serve, tmp_path: Path) -> None:
    """SageMaker gives /ping 2 s, then replaces the container."""
    large = ("data.image_size=224", "data.resize=256", "model.name=resnet18")
    server = serve(f"model_dir={write_model(tmp_path, *large)}")
    photo = io.BytesIO()
    Image.effect_noise((2000, 1500), 60).convert("RGB").save(photo, "JPEG")
    is_over, statuses = threading.Event(), list[int]()

    def load() -> None:
        while not is_over.is_set():
            statuses.append(server.invoke(photo.getvalue()).status)

    threads = [threading.Thread(target=load) for _ in range(16)]
    for thread in threads:
        thread.start()
    wait_for(lambda: bool(statuses))  # 15 others are at work
    for _ in range(20):
        answer = server.request("GET", "/ping", timeout=LONGEST_PING_S)
        assert answer.status == 200
        is_over.wait(0.01)
    is_over.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert set(statuses) == {200}


@pytest.mark.parametrize(
    ("argument", "variable", "words"),
    [
        ("model_dir=/no/such", "", "model_dir=/no/such: there is no such folder"),
        ("model_dir=.", "", "has no model.safetensors; name the model folder"),
        ("serve.max_batch=0", "", "serve.max_batch=0: Input should be greater than or equal to 1"),
        ("", "SAGEMAKER_MODEL_SERVER_WORKERS=two", "serve.workers=two: Input should be a valid in"),
        ("", "SAGEMAKER_MULTI_MODEL=true", "SAGEMAKER_MULTI_MODEL=true: this server has one"),
        ("", "SERVE_OVERRIDES=serve.workers=0", "serve.workers=0: Input should be greater than"),
        ("", "SERVE_OVERRIDES='", "SERVE_OVERRIDES=': must be overrides"),
    ],
)
def test_the_reason_not_to_start_is_one_line(
    argument: str,
    variable: str,
    words: str,
    served_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if variable:
        monkeypatch.setenv(*variable.split("=", 1))
    given = [f"model_dir={served_model}", *argument.split()]
    assert commands.serve(given) == ExitCode.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("serve: ") and words in line


def test_weights_that_answer_nan_are_never_ready(serve: Serve, tmp_path: Path) -> None:
    """Also if it is the number of one class only."""
    model = write_model(tmp_path)
    weights = load_file(model / "model.safetensors")
    bias = next(reversed([name for name in weights if name.endswith("bias")]))
    weights[bias][0] = float("nan")
    save_file(weights, model / "model.safetensors")
    server = serve(f"model_dir={model}", *ALONE, becomes_ready=False)
    assert server.process.wait(PATIENCE_S) == ExitCode.USAGE, server.log()
    line = server.log().splitlines()[-1]
    assert (
        line.startswith("serve: ")
        and "model.safetensors: the model answers NaN or infinite numbers; train" in line
    )
    assert "Traceback" not in server.log()


def test_log_and_page_say_which_model_this_is(serve: Serve, tmp_path: Path) -> None:
    reached = "epoch 3 of 90, validation accuracy 84.67 % <b>"
    model = write_model(tmp_path, reached=reached)
    server = serve(f"model_dir={model}", *ALONE)
    page = server.request("GET", "/").body.decode()
    facts = "project.models.small_net, classification, epoch 3 of 90, validation accuracy 84.67 % "
    assert f"{facts}&lt;b&gt;</p>" in page
    assert "<summary>3 names</summary>cat, big, dog, fish" in page
    assert server.log().splitlines()[0].endswith(f"{model}: {reached}")


def test_a_port_in_use_is_one_line(served_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = [f"model_dir={served_model}", "serve.host=127.0.0.1", f"serve.port={port}"]
        assert commands.serve(arguments) == ExitCode.USAGE
    assert f"serve.port={port}: cannot listen on 127.0.0.1" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_an_address_of_another_machine_is_one_line(
    host: str, served_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [f"model_dir={served_model}", f"serve.host={host}", "serve.port=0"]
    assert commands.serve(arguments) == ExitCode.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"serve: serve.host={host}: ") and "0.0.0.0" in line


@pytest.mark.parametrize(
    ("host", "shown"),
    [("0.0.0.0", "localhost"), ("::", "localhost"), ("127.0.0.2", "127.0.0.2"), ("::1", "[::1]")],
)
def test_the_address_to_try_is_one_that_the_server_listens_on(host: str, shown: str) -> None:
    assert address_of(ServerConfig(host=host), 80) == f"http://{shown}:80"


def test_it_needs_no_writable_folder_and_no_home(serve: Serve, served_model: Path) -> None:
    """The operator is compiled already; everything else works on a read-only root."""
    places = {"HOME": os.environ.get("HOME", "/"), "TMPDIR": "/proc"}
    server = serve(f"model_dir={served_model}", environment=places)
    assert server.invoke(encoded()).status == 200


def test_without_a_compiler_the_server_says_what_is_missing(
    serve: Serve, served_model: Path, tmp_path: Path
) -> None:
    none = {"CXX": "/no/compiler", "CUSTOM_OP_CACHE": str(tmp_path / "cache")}
    server = serve(f"model_dir={served_model}", environment=none, becomes_ready=False)
    assert server.process.wait(PATIENCE_S) == ExitCode.USAGE
    assert "CXX=/no/compiler: no such program" in server.log()
    assert "\n  Debian, Ubuntu:  apt-get install g++" in server.log()
    assert "Traceback" not in server.log()
