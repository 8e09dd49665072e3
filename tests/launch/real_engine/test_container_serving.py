"""``make docker-serve`` of a model that ``make docker-train`` made."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launch.engine import Engine
from tests.launch.real_engine.engine_jobs import (
    PATIENCE_SECONDS,
    READY,
    ROOT,
    Launcher,
    leftovers,
)


@contextmanager
def docker_serve(image: str, model: Path, log: Path) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """``make docker-serve`` on the host's network; yields its port once it is ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with log.open("w") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "launch.docker", "serve", f"model_dir={model}"],
            cwd=ROOT,
            env={**os.environ, "IMAGE": image, "PORT": str(port), "NETWORK": "host"},
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not READY.search(log.read_text()):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.3)
        yield port, process
    finally:
        process.kill()
        process.wait()


def test_docker_serve_answers_for_a_model_that_docker_train_made(
    engine: Engine, prebuilt_image: str, photos: Path, trained: Launcher, tmp_path: Path
) -> None:
    assert trained.wait() == 0, trained.text()
    model = trained.run_folder / "model"
    classes = json.loads((model / "classes.json").read_text())
    photo = next(photos.rglob("*.jpg")).read_bytes()
    log = tmp_path / "serve.log"
    with docker_serve(prebuilt_image, model, log) as (port, process):
        headers = {"Content-Type": "image/jpeg"}
        url = f"http://127.0.0.1:{port}/invocations"
        request = urllib.request.Request(url, photo, headers)
        (prediction,) = json.loads(urllib.request.urlopen(request).read())["predictions"]
        assert prediction["class"] in classes
        assert f"http://localhost:{port}/" in log.read_text()
        assert "custom_op: compiling" not in log.read_text()
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_SECONDS) == 0, log.read_text()
    assert leftovers(engine, "serve") == ""
