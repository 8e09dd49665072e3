"""`make weights` fetches published weights, and `model.weights=pretrained` finds them."""

import hashlib
import os
import socket
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import timm
import torch
from safetensors.torch import save_file
from torchvision.models import ResNet18_Weights

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import ModelConfig
from entry_point.job.program import ExitCode
from entry_point.training.models import build_model
from tests import commands, forkserver
from tests.failing_disk import without_room

TIMM = "timm/test_resnet"


class Mirror(SimpleHTTPRequestHandler):
    """Answers with files as Hugging Face does: with a commit and an ETag."""

    def end_headers(self) -> None:
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("ETag", '"1"')
        super().end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder, and the URL at which a server of this machine shows it."""
    folder = tmp_path / "served"
    folder.mkdir()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Mirror, directory=folder)) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def publish(folder: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write weights of a ResNet-18, and have torchvision take them for the published ones."""
    torch.manual_seed(3)
    plain = folder / "plain.pth"
    torch.save(build_model(ModelConfig("resnet18"), 1000).state_dict(), plain)
    file = folder / f"resnet18-{hashlib.sha256(plain.read_bytes()).hexdigest()[:8]}.pth"
    plain.rename(file)
    monkeypatch.setattr(ResNet18_Weights.DEFAULT.value, "url", f"{url}/{file.name}")
    return file


@pytest.fixture
def published(served: tuple[Path, str], monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file at the URL that torchvision has for a ResNet-18."""
    return publish(*served, monkeypatch)


def unused_url() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_a_run_begins_with_the_weights_that_make_weights_fetched(
    published: Path,
    elsewhere: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert commands.weights(["resnet18"]) == ExitCode.FINISHED
    said = capsys.readouterr().out.splitlines()[-1]
    assert 'make local-train ARGS="experiment=finetune model.name=resnet18 data.root=DIR"' in said
    model = build_model(ModelConfig("resnet18", weights="pretrained"), 5)
    weights = torch.load(elsewhere / "pretrained" / published.name)
    state = model.state_dict()
    assert [key for key in state if not torch.equal(state[key], weights[key])] == [
        "fc.weight",
        "fc.bias",
    ]
    published.unlink()  # it is not fetched again
    assert commands.weights(["resnet18"]) == ExitCode.FINISHED


def test_weights_of_another_checksum_are_refused(
    published: Path,
    elsewhere: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    published.write_bytes(published.read_bytes()[:-1])
    assert commands.weights(["resnet18"]) == ExitCode.USAGE
    line = capsys.readouterr().err.splitlines()[-1]
    assert published.name in line and "invalid hash" in line
    assert not [*elsewhere.glob("pretrained/*")]


def test_weights_that_do_not_fit_on_the_disk_are_no_matter_of_the_network(
    published: Path,
    elsewhere: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with without_room(1 << 20):
        assert commands.weights(["resnet18"]) == ExitCode.FAILED
    line = capsys.readouterr().err.splitlines()[-1]
    advice = "File too large: free up space and run the same command again"
    assert line == f"weights: pretrained/{published.name}: {advice}"
    assert not [*elsewhere.glob("pretrained/*")]


@pytest.mark.usefixtures("elsewhere")
def test_without_a_network_one_line_says_what_to_fetch_and_where_to_save_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = publish(tmp_path, unused_url(), monkeypatch)
    assert commands.weights(["resnet18"]) == ExitCode.USAGE
    (line,) = capsys.readouterr().err.splitlines()
    assert f"/{file.name} cannot be fetched (" in line
    assert line.endswith(f"save it as pretrained/{file.name}")
    Path("pretrained", file.name).write_bytes(file.read_bytes())
    assert build_model(ModelConfig("resnet18", weights="pretrained"), 5)


def test_the_channel_pretrained_brings_the_file_into_a_container(
    tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (channel := tmp_path / "channels" / "pretrained").mkdir(parents=True)
    publish(channel, "http://localhost", monkeypatch)
    config = ModelConfig("resnet18", weights="pretrained")
    assert build_model(config, 5, channels=tmp_path / "channels")
    with pytest.raises(ConfigError, match=r"run `make weights ARGS=resnet18`"):
        build_model(config, 5, channels=elsewhere)


def test_timms_weights_are_fetched_from_its_hub(served: tuple[Path, str], elsewhere: Path) -> None:
    folder, url = served
    config = timm.get_pretrained_cfg("test_resnet")
    file = folder / config.hf_hub_id / "resolve" / "main" / "model.safetensors"
    file.parent.mkdir(parents=True)
    torch.manual_seed(3)
    published = timm.create_model("test_resnet").state_dict()
    save_file(published, file)
    # A process of its own: the client reads these variables when it is imported.
    client = {"HF_ENDPOINT": url, "HF_HOME": str(elsewhere / "cache"), "HF_HUB_DISABLE_XET": "1"}
    program = forkserver.start(
        ["-m", "entry_point", "weights", TIMM],
        elsewhere / "log",
        environment=client,
        prepare=partial(os.chdir, elsewhere),
    )
    said, _ = program.communicate(timeout=120)
    assert program.wait() == ExitCode.FINISHED, said
    assert f"pretrained/timm/test_resnet.{config.tag}.safetensors: " in said
    state = build_model(ModelConfig(TIMM, weights="pretrained"), 5, image_size=160).state_dict()
    assert all(torch.equal(state[key], published[key]) for key in state if "fc" not in key)


def test_a_misspelt_name_is_told_before_the_weights_of_another_are_fetched(
    published: Path, elsewhere: Path
) -> None:
    assert published.exists()
    assert commands.weights(["resnet18", "resnet81"]) == ExitCode.USAGE
    assert not [*elsewhere.iterdir()]


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("resnet81", "did you mean resnet18?"),
        ("name=resnet18", "must be a torchvision model's name"),
        ("tests.own_models.tiny_net", "has no published weights"),
        (None, "make weights ARGS=resnet50"),
    ],
)
@pytest.mark.usefixtures("elsewhere")
def test_what_has_no_published_weights_is_one_line(
    name: str | None, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert commands.weights([name] if name else []) == ExitCode.USAGE
    (said,) = capsys.readouterr().err.splitlines()
    assert line in said
