"""What ``make image`` and ``make push`` ask the engine to do, and when they refuse."""

import json
import subprocess
from pathlib import Path

import pytest

from launch import image
from launch.aws import ecr
from launch.command_line import LaunchError
from launch.containers import image_name
from launch.containers.engine import Engine
from tests.launch.containers.conftest import FakeEngine


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit that replaces the project's."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "pyproject.toml").write_text('version = "1.2.3"\n')
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
        subprocess.run(["git", "-C", str(folder), *identity, *command], check=True)
    monkeypatch.setattr(image_name, "ROOT", folder)
    return folder


def test_the_tag_names_device_and_commit(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = subprocess.run(
        ["git", "-C", str(repository), "rev-parse", "HEAD"], capture_output=True, text=True
    ).stdout
    assert image_name.local_reference() == f"{image_name.DEFAULT_NAME}:cpu-{head[:12]}"
    monkeypatch.setenv("DEVICE", "gpu")
    assert image_name.local_reference() == f"{image_name.DEFAULT_NAME}:gpu-{head[:12]}"
    (repository / "new").write_text("")
    assert image_name.local_reference() == f"{image_name.DEFAULT_NAME}:gpu-{head[:12]}-dirty"


def test_symlinked_environments_and_data_leave_the_tree_clean(repository: Path) -> None:
    ignored = (Path(__file__).resolve().parents[3] / ".gitignore").read_text()
    (repository / ".git" / "info" / "exclude").write_text(ignored)
    for name in (".venv", ".venv-launch", "data", "runs"):
        (repository / name).symlink_to("/")
    assert not image_name.revision().endswith("-dirty"), image_name.changed_files()


def test_a_tree_without_a_repository_can_be_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image_name, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert image_name.local_reference() == f"{image_name.DEFAULT_NAME}:cpu-untracked"


def test_an_image_can_be_built_without_git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert image_name.local_reference() == f"{image_name.DEFAULT_NAME}:cpu-untracked"


@pytest.mark.parametrize("reference", ["mine:7", "host:5000/mine:7", "host/mine@sha256:abc"])
def test_a_full_reference_is_used_unchanged(
    monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    monkeypatch.setenv("IMAGE", reference)
    assert image_name.local_reference() == reference


def test_a_registry_port_is_not_taken_for_a_tag(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert repository
    monkeypatch.setenv("IMAGE", "host:5000/mine")
    assert image_name.local_reference().startswith("host:5000/mine:cpu-")


def test_settings_become_build_arguments(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert repository
    monkeypatch.setenv("BASE_IMAGE", "mine:1")
    monkeypatch.setenv("PREBUILD", "1")
    monkeypatch.setenv("EXTRAS", "dali")
    monkeypatch.setenv("BUILD_OPTIONS", "--network=host --build-arg='A=b c'")
    arguments = image.build_arguments()
    assert "--build-arg=BASE_IMAGE=mine:1" in arguments
    assert "--build-arg=PREBUILD=1" in arguments
    assert "--build-arg=EXTRAS=dali" in arguments
    assert "--build-arg=VERSION=1.2.3" in arguments
    assert arguments[-2:] == ["--network=host", "--build-arg=A=b c"]


def test_arm64_has_its_own_base_and_tag(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert repository
    monkeypatch.setenv("PLATFORM", "linux/arm64")
    assert {"--platform=linux/arm64", "--build-arg=BASE_IMAGE=arm64"} <= set(
        image.build_arguments()
    )
    assert ":cpu-arm64-" in image_name.local_reference()
    monkeypatch.setenv("DEVICE", "gpu")
    with pytest.raises(LaunchError, match=r"DEVICE=gpu PLATFORM=linux/arm64: .*set BASE_IMAGE"):
        image.build_arguments()
    monkeypatch.setenv("BASE_IMAGE", "mine:1")
    assert "--build-arg=BASE_IMAGE=mine:1" in image.build_arguments()
    monkeypatch.setenv("PLATFORM", "linux/amd64")
    assert "--platform=linux/amd64" in image.build_arguments()
    assert ":gpu-" in image_name.local_reference()


@pytest.mark.parametrize(
    ("name", "value"), [("DEVICE", "tpu"), ("PREBUILD", "yes"), ("PLATFORM", "arm64")]
)
def test_an_invalid_setting_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(LaunchError, match=f"{name}={value}"):
        image.build_arguments()


def test_build_prints_name_size_and_id(
    repository: Path, fake_engine: FakeEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    described = json.dumps([{"Size": 6136000000, "Id": "sha256:12ab"}])
    calls = fake_engine(f"case $1 in image) echo '{described}';; esac")
    image.build()
    text = capfd.readouterr().out
    assert image_name.local_reference() in text
    assert "6,136 MB" in text and "sha256:12ab" in text
    assert f"build --progress=plain -t {image_name.local_reference()}" in calls.read_text()
    assert str(repository) in calls.read_text()


def test_a_tree_with_uncommitted_changes_is_not_pushed(
    repository: Path, fake_engine: FakeEngine
) -> None:
    calls = fake_engine("exit 0")
    (repository / "pyproject.toml").write_text("")
    with pytest.raises(LaunchError, match=r"the tree is dirty \(pyproject\.toml\), .*commit"):
        image.push()
    for number in range(4):
        (repository / f"new {number}").write_text("")
    with pytest.raises(LaunchError, match=r'\(pyproject\.toml, "new 0", "new 1" and 2 more\)'):
        image.push()
    assert not calls.exists()


def test_a_missing_image_is_not_pushed(repository: Path, fake_engine: FakeEngine) -> None:
    assert repository
    fake_engine("case $1 in image) echo 'Error: No such image' >&2; exit 1;; esac")
    with pytest.raises(LaunchError, match="run `make image` first"):
        image.push()


def described(revision: str, repository: str = image_name.DEFAULT_NAME) -> str:
    """Script of an engine that has an image of this revision, with two digests."""
    facts = {
        "Config": {"Labels": {image.REVISION_LABEL: revision}},
        "RepoDigests": [f"other/{repository}@sha256:1", f"localhost:5000/{repository}@sha256:2"],
    }
    return f"case $1 in image) echo '{json.dumps([facts])}';; esac"


def test_push_returns_the_digest_of_the_target_registry(
    repository: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert repository
    calls = fake_engine(described(image_name.revision()))
    monkeypatch.setenv("REGISTRY", "localhost:5000")
    assert image.push() == f"localhost:5000/{image_name.DEFAULT_NAME}@sha256:2"
    target = f"localhost:5000/{image_name.local_reference()}"
    assert f"tag {image_name.local_reference()} {target}\npush {target}" in calls.read_text()


def test_a_custom_tag_is_pushed_only_if_the_image_is_of_this_commit(
    repository: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert repository
    monkeypatch.setenv("IMAGE", "team/mine:7")
    monkeypatch.setenv("REGISTRY", "localhost:5000")
    fake_engine(described(image_name.revision(), "team/mine"))
    assert image.push() == "localhost:5000/team/mine@sha256:2"
    calls = fake_engine(described("0123456789ab", "team/mine"))
    calls.unlink()
    with pytest.raises(LaunchError, match=r"mine:7 was built from 0123456789ab.*make image"):
        image.push()
    assert "push" not in calls.read_text()


@pytest.mark.parametrize("reference", ["host:5000/mine", "ghcr.io/me/mine:1", "mine@sha256:abc"])
def test_an_image_name_with_a_registry_is_refused(
    repository: Path, monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    assert repository
    monkeypatch.setenv("IMAGE", reference)
    with pytest.raises(LaunchError, match=f"IMAGE={reference}: .*REGISTRY=HOST:PORT"):
        image.push()


def test_a_misspelled_command_lists_the_commands() -> None:
    with pytest.raises(SystemExit, match="biuld: must be one of build, push"):
        image.main(["biuld"])


@pytest.mark.usefixtures("aws")
def test_the_ecr_password_is_passed_on_stdin_not_as_an_argument(
    fake_engine: FakeEngine, tmp_path: Path
) -> None:
    stdin = tmp_path / "stdin"
    calls = fake_engine(f"cat >{stdin}")
    registry = image.log_in(Engine((str(tmp_path / "bin" / "docker"),)), "mine")
    assert registry.endswith(".dkr.ecr.eu-west-1.amazonaws.com")
    _, password, _ = ecr.open_repository("mine")
    assert stdin.read_text() == password
    assert calls.read_text() == f"login --username AWS --password-stdin {registry}\n"
