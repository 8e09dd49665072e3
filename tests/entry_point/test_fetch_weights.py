"""make fetch-weights: published weights become a file that a job starts from."""

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import timm
import torch
import torchvision
from safetensors.torch import load_file, save_file

from entry_point import fetch_weights
from entry_point.config.train_config import ModelConfig, load_train_config
from entry_point.contract import exit_codes
from entry_point.training.models.build_model import build_model

TAG = "r160_in1k"


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    """The weights that torchvision's download of SqueezeNet brings."""
    torch.manual_seed(1)
    state: dict[str, torch.Tensor] = torchvision.models.squeezenet1_1().state_dict()
    torch.save(state, tmp_path / "published.pth")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "cache"))

    def download(_url: str, target: str, *_: object, **__: object) -> None:
        shutil.copy(tmp_path / "published.pth", target)

    monkeypatch.setattr(torch.hub, "download_url_to_file", download)
    return state


@pytest.mark.parametrize("file", ["weights.pth", "new/weights.safetensors"])
def test_torchvisions_weights_start_a_job_with_the_printed_settings(
    file: str,
    published: dict[str, torch.Tensor],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = tmp_path / file
    caplog.set_level("INFO")
    assert fetch_weights.fetch(["model.name=squeezenet1_1", f"output={path}"]) == 0
    command = re.fullmatch(r'make local-train ARGS="(.*)"', caplog.messages[-1])
    assert command
    config, _ = load_train_config(command[1].split())
    model = build_model(config.model, 7)
    assert all(
        torch.equal(value, published[key])
        for key, value in model.state_dict().items()
        if not key.startswith("classifier.1")
    )
    assert (config.data.image_size, config.data.mean) == (224, [0.485, 0.456, 0.406])
    assert [each.name for each in path.parent.iterdir() if each.name.startswith(".")] == []


class Hub(BaseHTTPRequestHandler):
    """The hub's answers for one repository with one file."""

    content = b""

    def do_HEAD(self) -> None:
        found = self.path == f"/timm/test_resnet.{TAG}/resolve/main/model.safetensors"
        self.send_response(200 if found else 404)
        self.send_header("ETag", '"1234"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Content-Length", str(len(self.content) if found else 0))
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(self.content)

    def log_message(self, format: str, *arguments: object) -> None: ...


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    """A server with weights of timm's test_resnet."""
    torch.manual_seed(1)
    save_file(timm.create_model("test_resnet").state_dict(), tmp_path / "published.safetensors")
    Hub.content = (tmp_path / "published.safetensors").read_bytes()
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def fetched(tmp_path: Path, url: str, *overrides: str) -> subprocess.CompletedProcess[str]:
    environment = {"HF_ENDPOINT": url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_XET": "1"}
    return subprocess.run(
        [sys.executable, "-m", "entry_point.fetch_weights", *overrides],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def test_timms_weights_come_from_its_hub(tmp_path: Path, hub: str) -> None:
    path = tmp_path / "weights.safetensors"
    done = fetched(tmp_path, hub, f"model.name=timm/test_resnet.{TAG}", f"output={path}")
    assert done.returncode == 0, done.stderr
    written, published = load_file(path), load_file(tmp_path / "published.safetensors")
    assert all(torch.equal(written[key], value) for key, value in published.items())
    assert (
        f"model.name=timm/test_resnet model.weights={path} data.image_size=160 data.resize=168 "
        in done.stdout
    )
    build_model(ModelConfig("timm/test_resnet", weights=str(path)), 7)


def test_without_a_network_one_line_says_so(tmp_path: Path) -> None:
    path = tmp_path / "weights.pt"
    done = fetched(tmp_path, "http://127.0.0.1:9", "model.name=timm/test_resnet", f"output={path}")
    assert done.returncode == exit_codes.USAGE, done.stderr
    (line,) = done.stderr.splitlines()
    assert line == (
        "fetch-weights: model.name=timm/test_resnet: its weights cannot be downloaded (<urlopen "
        "error [Errno 111] Connection refused>); check the network, or fetch them on another "
        "machine and copy the file"
    )
    assert not path.exists()


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (["output=a.pt"], "model.name: has no value; add model.name=VALUE"),
        (["model.name=resnet18", "output=a.bin"], "output=a.bin: must end with one of .safetens"),
        (["model.name=resnet81", "output=a.pt"], "model.name=resnet81: must be a model of torch"),
        (
            ["model.name=resnet50", "weights=IMAGENET1K_V3", "output=a.pt"],
            "weights=IMAGENET1K_V3: must be one of IMAGENET1K_V1, IMAGENET1K_V2, DEFAULT; did you",
        ),
        (
            ["model.name=timm/resnet18", "weights=a1_in1k", "output=a.pt"],
            "weights=a1_in1k: is for torchvision's models; use model.name=timm/resnet18.TAG",
        ),
        (
            ["model.name=timm/vit_tiny_r_s16_p8_224_in1k", "output=a.pt"],
            "has no such model; did you mean vit_tiny_r_s16_p8_224?",
        ),
    ],
)
def test_what_cannot_be_fetched_is_one_line(
    overrides: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fetch_weights.main(overrides) == exit_codes.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert error in line
