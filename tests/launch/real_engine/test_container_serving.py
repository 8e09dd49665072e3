"""A model that the image trained, served by the same image."""

import json
import os
import re
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
    ROOT,
    Job,
    Launch,
    leftovers,
)
from tests.launch.real_engine.test_confinement import LOCKED_UP

READY = re.compile(r"is ready on port")
TRAINED = ("trainer.epochs=1", "trainer.report=true")
# Asks the server from inside a container without a network.
ASK = """
import sys, urllib.request
kind = {"Content-Type": "image/jpeg"}
body = open(sys.argv[1], "rb").read()
request = urllib.request.Request("http://127.0.0.1:8080/invocations", body, kind)
print(urllib.request.urlopen(request).read().decode())
"""


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
    engine: Engine, prebuilt_image: str, photos: Path, launch: Launch, tmp_path: Path
) -> None:
    launcher = launch(prebuilt_image, f"data.root={photos}", *TRAINED, name="served", settings={})
    assert launcher.wait() == 0, launcher.text()
    model = launcher.run_folder / "model"
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
    assert leftovers(engine, "served", "serve") == ""


def test_a_job_without_a_command_trains_and_its_model_is_served_in_confinement(
    engine: Engine, job: Job, prebuilt_image: str, photos: Path
) -> None:
    container = job.start(prebuilt_image, overrides=TRAINED, command=())
    assert job.wait(container) == 0, job.log(container)
    assert (job.folder / "model/model.safetensors").is_file()
    server = engine.call(
        *("run", "--detach", *LOCKED_UP, "--network=none", "--tmpfs=/tmp"),
        f"--volume={job.folder}/model:/opt/ml/model:ro",
        f"--volume={photos}:/photos:ro",
        prebuilt_image,
        "serve",
    )
    job.containers.append(server)
    job.wait_for(server, READY)
    photo = next(photos.rglob("*.jpg")).relative_to(photos)
    answer = engine.call("exec", server, "python", "-c", ASK, f"/photos/{photo}")
    assert "predictions" in json.loads(answer)
    engine.call("stop", "--time=30", server)
    assert engine.call("inspect", "--format", "{{.State.ExitCode}}", server) == "0"
