"""What ``make image`` and ``make push`` ask the engine to do, and when they refuse."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from entry_point.contract import exit_codes
from entry_point.contract.program import UserError
from launch import image
from launch.engine import Engine, find_engine
from tests.launch.conftest import REGION, Aws
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
    monkeypatch.setattr(image, "ROOT", folder)
    return folder


def test_the_tag_names_device_and_commit(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = subprocess.run(
        ["git", "-C", str(repository), "rev-parse", "HEAD"], capture_output=True, text=True
    ).stdout
    assert image.image_reference() == f"{image.DEFAULT_NAME}:cpu-{head[:12]}"
    monkeypatch.setenv("DEVICE", "gpu")
    assert image.image_reference() == f"{image.DEFAULT_NAME}:gpu-{head[:12]}"
    (repository / "new").write_text("")
    assert image.image_reference() == f"{image.DEFAULT_NAME}:gpu-{head[:12]}-dirty"


def test_the_label_of_a_dirty_tree_names_its_state(repository: Path) -> None:
    commit = image.revision()
    assert f"--build-arg=REVISION={commit}" in image.build_arguments()
    code = repository / "entry_point" / "train.py"
    code.parent.mkdir()
    states = []
    for text in ("one", "two", "one"):
        code.write_text(text)
        states.append(image.revision())
        assert f"--build-arg=REVISION={states[-1]}" in image.build_arguments()
    assert all(re.fullmatch(f"{commit}-dirty-[0-9a-f]{{8}}", state) for state in states)
    assert states[0] == states[2] != states[1]


def test_symlinked_environments_and_data_leave_the_tree_clean(repository: Path) -> None:
    ignored = (Path(__file__).resolve().parents[3] / ".gitignore").read_text()
    (repository / ".git" / "info" / "exclude").write_text(ignored)
    for name in (".venv", ".venv-launch", "data", "runs"):
        (repository / name).symlink_to("/")
    assert image.is_committed(image.commit())


def test_a_tree_without_a_repository_can_be_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert image.image_reference() == f"{image.DEFAULT_NAME}:cpu-untracked"


def test_an_image_can_be_built_without_git(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert image.image_reference() == f"{image.DEFAULT_NAME}:cpu-untracked"


@pytest.mark.parametrize("reference", ["mine:7", "host:5000/mine:7", "host/mine@sha256:abc"])
def test_a_full_reference_is_used_unchanged(
    monkeypatch: pytest.MonkeyPatch, reference: str
) -> None:
    monkeypatch.setenv("IMAGE", reference)
    assert image.image_reference() == reference


def test_a_registry_port_is_not_taken_for_a_tag(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert repository
    monkeypatch.setenv("IMAGE", "host:5000/mine")
    assert image.image_reference().startswith("host:5000/mine:cpu-")


def test_settings_become_build_arguments(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert repository
    monkeypatch.setenv("BASE_IMAGE", "mine:1")
    monkeypatch.setenv("PREBUILD", "0")
    monkeypatch.setenv("EXTRAS", "dali")
    monkeypatch.setenv("BUILD_OPTIONS", "--network=host --build-arg='A=b c'")
    arguments = image.build_arguments()
    assert "--build-arg=BASE_IMAGE=mine:1" in arguments
    assert "--build-arg=PREBUILD=0" in arguments
    assert "--build-arg=EXTRAS=dali" in arguments
    assert "--build-arg=VERSION=1.2.3" in arguments
    assert arguments[-2:] == ["--network=host", "--build-arg=A=b c"]


def test_build_prints_name_size_id_and_the_state_of_a_dirty_tree(
    repository: Path, fake_engine: FakeEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    described = json.dumps([{"Size": 6136000000, "Id": "sha256:12ab"}])
    calls = fake_engine(f"case $1 in image) echo '{described}';; esac")
    image.build(find_engine())
    text = capfd.readouterr().out
    assert image.image_reference() in text and "dirty" not in text
    assert "6,136 MB" in text and "sha256:12ab" in text
    assert f"build --progress=plain --tag={image.image_reference()}" in calls.read_text()
    assert str(repository) in calls.read_text()
    (repository / "Dockerfile").write_text("FROM other")
    image.build(find_engine())
    assert f"label names it {image.revision()}\n" in capfd.readouterr().out


def test_a_build_disables_attestations(
    repository: Path, fake_engine: FakeEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    fake_engine("echo attestations $BUILDX_NO_DEFAULT_ATTESTATIONS")
    image.build_image(find_engine(), "x:y", repository)
    assert "attestations 1" in capfd.readouterr().out


def test_a_failed_build_is_one_line_after_its_output(
    repository: Path, fake_engine: FakeEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    assert repository
    fake_engine("case $1 in build) echo 'ERROR: no such stage' >&2; exit 1;; esac")
    assert image.main(["build"]) == exit_codes.USAGE
    told = capfd.readouterr()
    assert told.err.startswith("image: the build failed, ") and "DEVICE, BASE_IMAGE" in told.err
    assert "ERROR: no such stage" in told.out


def test_a_tree_with_uncommitted_changes_is_not_pushed(
    repository: Path, fake_engine: FakeEngine
) -> None:
    calls = fake_engine("exit 0")
    (repository / "pyproject.toml").write_text("")
    with pytest.raises(UserError, match=r"the tree is [0-9a-f]{12}-dirty, .*commit what"):
        image.push(find_engine())
    assert "push" not in calls.read_text()


def test_a_missing_image_is_not_pushed(repository: Path, fake_engine: FakeEngine) -> None:
    assert repository
    fake_engine("case $1 in image) echo 'Error: No such image' >&2; exit 1;; esac")
    with pytest.raises(UserError, match="run `make image` first"):
        image.push(find_engine())


def described(revision: str) -> str:
    """Script of an engine that has an image of this revision."""
    facts = {"Config": {"Labels": {image.REVISION_LABEL: revision}}}
    return f"case $1 in image) echo '{json.dumps([facts])}';; esac"


def test_push_prints_the_image_in_the_registry(
    repository: Path,
    fake_engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert repository
    calls = fake_engine(described(image.revision()))
    monkeypatch.setenv("REGISTRY", "localhost:5000")
    image.push(find_engine())
    target = f"localhost:5000/{image.image_reference()}"
    assert f"target.image={target}\n" in capfd.readouterr().out
    assert f"tag {image.image_reference()} {target}\npush {target}" in calls.read_text()


def test_podman_builds_in_docker_format(repository: Path, fake_engine: FakeEngine) -> None:
    calls = fake_engine("exit 0")
    image.build_image(Engine((os.environ["ENGINE"],), is_podman=True), "x:y", repository)
    assert "build --format=docker --tag=x:y" in calls.read_text()


def test_a_failed_push_names_the_registry(
    repository: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert repository
    fake_engine(described(image.revision()) + "; case $1 in push) exit 1;; esac")
    monkeypatch.setenv("REGISTRY", "localhost:1")
    with pytest.raises(UserError, match=r"REGISTRY=localhost:1, .*`docker login localhost:1`"):
        image.push(find_engine())


def test_a_custom_tag_is_pushed_only_if_the_image_is_of_this_commit(
    repository: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert repository
    monkeypatch.setenv("IMAGE", "team/mine:7")
    monkeypatch.setenv("REGISTRY", "localhost:5000")
    calls = fake_engine(described(image.revision()))
    image.push(find_engine())
    assert "push localhost:5000/team/mine:7" in calls.read_text()
    fake_engine(described("0123456789ab"))
    calls.unlink()
    with pytest.raises(UserError, match=r"mine:7 was built from 0123456789ab.*make image"):
        image.push(find_engine())
    assert "push" not in calls.read_text()


def test_logging_in_to_ecr_passes_the_password_on_stdin_and_creates_nothing(
    aws: Aws, fake_engine: FakeEngine, tmp_path: Path
) -> None:
    aws.client("ecr").create_repository(repositoryName="mine")
    aws.calls.clear()
    stdin = tmp_path / "stdin"
    calls = fake_engine(f"cat >{stdin}")
    registry = image.log_in(find_engine(), "mine")
    assert registry.endswith(".dkr.ecr.eu-west-1.amazonaws.com")
    password = stdin.read_text()
    login = f"login --username AWS --password-stdin {registry}\n"
    assert password and calls.read_text().endswith(login)
    operations = [call.operation for call in aws.calls]
    assert operations == ["DescribeRepositories", "GetAuthorizationToken"]


@pytest.mark.usefixtures("aws")
def test_a_repository_that_does_not_exist_is_named_with_the_command_that_creates_it(
    fake_engine: FakeEngine,
) -> None:
    fake_engine("exit 0")
    with pytest.raises(UserError) as error:
        image.log_in(find_engine(), "mine")
    assert str(error.value) == (
        f"IMAGE=mine: there is no such repository in {REGION}; "
        '`make setup-aws ARGS="Bucket=NAME Repository=mine"` creates it'
    )


@pytest.mark.usefixtures("aws")
def test_missing_credentials_for_ecr_are_one_line(
    fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_engine("exit 0")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(UserError, match="credentials"):
        image.log_in(find_engine(), "mine")


def test_a_missing_region_for_ecr_is_one_line(
    fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_engine("exit 0")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="no AWS region: set AWS_DEFAULT_REGION"):
        image.log_in(find_engine(), "mine")
