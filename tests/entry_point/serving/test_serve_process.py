"""How a server starts, stops and refuses to start."""

import io
import os
import re
import signal
import socket
import threading
from pathlib import Path

import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

from entry_point.job.program import ExitCode
from project.models import small_net
from tests import commands
from tests.entry_point.serving.conftest import Serve
from tests.entry_point.serving.served_model import PATIENCE_S, write_model, write_slow_model
from tests.entry_point.serving.test_invocations import encoded
from tests.entry_point.serving.test_serve_limits import ALONE, head, wait_for, waiting

ACCEPT = "SAGEMAKER_DEFAULT_INVOCATIONS_ACCEPT"
LONGEST_STOP_S = 25
LONGEST_PING_S = 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_answers_the_requests_that_were_accepted(
    number: signal.Signals, serve: Serve, tmp_path: Path
) -> None:
    model, go = write_slow_model(tmp_path)
    server = serve(f"model_dir={model}", *ALONE)
    server.wait_until_ready()
    statuses: list[int] = []
    image = encoded()
    threads = [
        threading.Thread(target=lambda: statuses.append(server.invoke(image).status))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    wait_for(lambda: waiting(server) == 3)
    server.process.send_signal(number)
    wait_for(lambda: server.ping() is None)  # it no longer accepts
    go.touch()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert statuses == [200] * 4
    assert server.process.wait(LONGEST_STOP_S) == ExitCode.FINISHED, server.log()


def test_a_stop_does_not_wait_for_idle_and_stalled_clients(
    serve: Serve, served_model: Path
) -> None:
    server = serve(f"model_dir={served_model}", constants={"server.DRAIN_S": 1})
    server.wait_until_ready()
    idle, stalled = server.connect(), server.connect()
    idle.sendall(b"GET /ping HTTP/1.1\r\nHost: x\r\n\r\n")
    assert idle.recv(1)
    stalled.sendall(head(1000))
    assert server.invoke(encoded()).status == 200
    server.process.terminate()
    assert server.process.wait(LONGEST_STOP_S) == ExitCode.FINISHED
    assert stalled.recv(65536).startswith(b"HTTP/1.1 503 ")
    assert "Traceback" not in server.log()
    for connection in (idle, stalled):
        connection.close()


def test_a_hanging_model_does_not_keep_the_server_from_ending(serve: Serve, tmp_path: Path) -> None:
    model, _ = write_slow_model(tmp_path)
    server = serve(f"model_dir={model}", constants={"server.DRAIN_S": 1})
    server.wait_until_ready()
    with server.connect() as connection:
        connection.sendall(head(len(image := encoded())) + image)
        wait_for(lambda: (tmp_path / "started").exists())
        server.process.terminate()
        assert server.process.wait(LONGEST_STOP_S) == ExitCode.FINISHED
    assert "a batch is still running" in server.log()


SLOW_LOAD = """
import time
from project.models import small_net

def net(num_classes):
    time.sleep(1000)
    return small_net(num_classes, width=8)
"""


def test_a_server_that_loads_answers_503_and_can_be_stopped(serve: Serve, tmp_path: Path) -> None:
    network = small_net(3, width=8)
    model = write_model(tmp_path, "model.name=project.net.net", network=network, code=SLOW_LOAD)
    server = serve(f"model_dir={model}")
    wait_for(lambda: server.ping() == 503)
    answer = server.invoke(encoded())
    assert (answer.status, answer.json()["error"]) == (503, "the model is loading")
    server.process.terminate()
    assert server.process.wait(LONGEST_STOP_S) == ExitCode.FINISHED, server.log()
    assert "still running" not in server.log()


def test_ping_answers_while_every_core_computes(serve: Serve, tmp_path: Path) -> None:
    """SageMaker gives /ping 2 s, then replaces the container."""
    large = ("data.image_size=224", "data.resize=256", "model.name=resnet18")
    server = serve(f"model_dir={write_model(tmp_path, *large)}")
    server.wait_until_ready()
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
    for _ in range(50):
        answer = server.request("GET", "/ping", timeout=LONGEST_PING_S)
        assert answer.status == 200
        is_over.wait(0.01)
    is_over.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert set(statuses) == {200}


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["model_dir=/no/such"], {}, "model_dir=/no/such: there is no such folder"),
        (["model_dir=."], {}, "has no model.safetensors; name the model folder"),
        (
            ["serve.max_batch=0"],
            {},
            "serve.max_batch=0: Input should be greater than or equal to 1",
        ),
        (["serve.prot=1"], {}, "did you mean serve.port?"),
        (
            [],
            {"SAGEMAKER_MODEL_SERVER_WORKERS": "two"},
            "serve.workers=two: Input should be a valid integer",
        ),
        ([], {"SAGEMAKER_MULTI_MODEL": "true"}, "SAGEMAKER_MULTI_MODEL=true: this server has one"),
        (
            [],
            {"SERVE_OVERRIDES": "serve.workers=0"},
            "serve.workers=0: Input should be greater than or equal to 1",
        ),
        ([], {"SERVE_OVERRIDES": "'"}, "SERVE_OVERRIDES=': must be overrides"),
        ([], {ACCEPT: "text/html"}, f"{ACCEPT}=text/html: must be application/json or"),
    ],
)
def test_the_reason_not_to_start_is_one_line(
    arguments: list[str],
    environment: dict[str, str],
    words: str,
    serve: Serve,
    served_model: Path,
) -> None:
    server = serve(f"model_dir={served_model}", *arguments, environment=environment)
    assert server.process.wait(PATIENCE_S) == ExitCode.USAGE
    line = server.log().splitlines()[-1]
    assert line.startswith("serve: ") and words in line
    assert "Traceback" not in server.log()


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_answer_nan_are_never_ready(
    number: float, serve: Serve, tmp_path: Path
) -> None:
    """Also if it is the number of one class only."""
    model = write_model(tmp_path)
    weights = load_file(model / "model.safetensors")
    bias = next(reversed([name for name in weights if name.endswith("bias")]))
    weights[bias][0] = number
    save_file(weights, model / "model.safetensors")
    server = serve(f"model_dir={model}", *ALONE)
    assert server.process.wait(PATIENCE_S) == ExitCode.USAGE, server.log()
    line = server.log().splitlines()[-1]
    assert line.startswith("serve: ") and "model.safetensors: the model answers NaN; train" in line
    assert "Traceback" not in server.log()


def test_a_model_whose_classes_share_a_name_is_never_ready(serve: Serve, tmp_path: Path) -> None:
    model = write_model(tmp_path)
    (model / "classes.json").write_text('["cat", "dog", "cat"]')
    server = serve(f"model_dir={model}", *ALONE)
    assert server.process.wait(PATIENCE_S) == ExitCode.USAGE, server.log()
    assert "classes.json: 'cat' occurs twice: " in server.log().splitlines()[-1]


def test_log_and_page_say_that_a_model_is_unfinished(
    serve: Serve, served_model: Path, tmp_path: Path
) -> None:
    model = write_model(tmp_path)
    config = model / "config.yaml"
    config.write_text(config.read_text() + "unfinished: {epoch: 1, step: 5}\n")
    for folder, said in ((model, 1), (served_model, 0)):
        server = serve(f"model_dir={folder}", *ALONE)
        server.wait_until_ready()
        page = server.request("GET", "/").body.decode()
        assert page.count("<h1>Try the unfinished model</h1>") == said
        assert server.log().count("unfinished model: its job was stopped; weights of step") == said


def test_the_page_says_which_model_this_is_and_what_it_reached(
    serve: Serve, tmp_path: Path
) -> None:
    model = write_model(tmp_path)
    weights = model / "model.safetensors"
    save_file(load_file(weights), weights, {"validation": "accuracy 84.67 % <b>"})
    server = serve(f"model_dir={model}", *ALONE)
    server.wait_until_ready()
    page = server.request("GET", "/").body.decode()
    said = "project.models.small_net, classification, validation accuracy 84.67 % &lt;b&gt;</p>"
    assert said in page and "<summary>3 names</summary>cat, big, dog, fish" in page


def test_a_port_in_use_is_one_line(served_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = [f"model_dir={served_model}", "serve.host=127.0.0.1", f"serve.port={port}"]
        assert commands.serve(arguments) == ExitCode.USAGE
    assert f"serve.port={port}: cannot listen on 127.0.0.1" in capsys.readouterr().err


def test_it_needs_no_writable_folder_and_no_home(serve: Serve, served_model: Path) -> None:
    """The operator is compiled already; everything else works on a read-only root."""
    places = {"HOME": os.environ.get("HOME", "/"), "TMPDIR": "/proc"}
    server = serve(f"model_dir={served_model}", environment=places)
    server.wait_until_ready()
    assert server.invoke(encoded()).status == 200


def test_the_log_has_the_numbers_of_each_interval(serve: Serve, served_model: Path) -> None:
    server = serve(f"model_dir={served_model}", constants={"server.LOG_EVERY_S": 0.2})
    server.wait_until_ready()
    server.invoke(encoded())
    server.invoke(b"damaged")
    line = re.compile(r"requests=2 errors=1 p50_ms=[\d.]+ p90_ms=.* batch_mean=1\.0\n")
    first = re.compile(r"requests=1 errors=0 ")  # if the interval ended between the two
    wait_for(lambda: bool(line.search(server.log()) or first.search(server.log())))


def test_without_a_compiler_the_server_says_what_is_missing(
    serve: Serve, served_model: Path, tmp_path: Path
) -> None:
    none = {"CXX": "/no/compiler", "CUSTOM_OP_CACHE": str(tmp_path / "cache")}
    server = serve(f"model_dir={served_model}", environment=none)
    assert server.process.wait(PATIENCE_S) == ExitCode.USAGE
    assert "CXX=/no/compiler: no such program" in server.log()
    assert "\n  Debian, Ubuntu:  apt-get install g++" in server.log()
    assert "Traceback" not in server.log()
