"""What ``make image`` and ``make push`` ask the engine and AWS to do, and when they refuse."""

import re
import subprocess
from pathlib import Path

import pytest

from entry_point.config.retired import RETIRED
from entry_point.job.program import ExitCode
from launch import image, revision
from tests.launch.conftest import REGISTRY, ROOT, Aws, Terminal
from tests.launch.containers.conftest import FakeEngine

DOCKERFILE = (ROOT / "Dockerfile").read_text()
# An engine that has every image; its builds and pushes succeed.
WILLING = "case $1 in image) echo 0123;; login) cat >%s;; esac"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit that replaces the project's."""
    (folder := tmp_path / "repository").mkdir()
    (folder / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
        subprocess.run(["git", "-C", str(folder), *identity, *command], check=True)
    for module in (image, revision):
        monkeypatch.setattr(module, "ROOT", folder)
    return folder


def head(repository: Path) -> str:
    command = ["git", "-C", str(repository), "rev-parse", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True).stdout[:12]


def refusal(terminal: Terminal, command: str) -> str:
    """The line with which a command is refused, after the engine's own."""
    line = terminal.refusal(image.main, command, code=ExitCode.USAGE)
    assert line.startswith("image: ")
    return line


def test_the_tag_names_device_and_commit_and_whether_files_differ_from_it(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert image.image_reference() == f"{image.DEFAULT_NAME}:cpu-{head(repository)}"
    monkeypatch.setenv("DEVICE", "gpu")
    assert image.image_reference() == f"{image.DEFAULT_NAME}:gpu-{head(repository)}"
    (repository / "new").write_text("")
    assert image.image_reference() == f"{image.DEFAULT_NAME}:gpu-{head(repository)}-dirty"


@pytest.mark.parametrize(
    ("named", "reference"),
    [
        ("mine:7", "mine:7"),
        ("host:5000/mine:7", "host:5000/mine:7"),
        ("host/mine@sha256:abc", "host/mine@sha256:abc"),
        ("host:5000/mine", "host:5000/mine:cpu-COMMIT"),
    ],
)
def test_a_tag_of_ones_own_replaces_the_commits_and_a_port_is_none(
    repository: Path, monkeypatch: pytest.MonkeyPatch, named: str, reference: str
) -> None:
    monkeypatch.setenv("IMAGE", named)
    assert image.image_reference() == reference.replace("COMMIT", head(repository))


def test_symlinked_environments_and_data_leave_the_tree_clean(repository: Path) -> None:
    (repository / ".git" / "info" / "exclude").write_text((ROOT / ".gitignore").read_text())
    for name in (".venv", ".venv-launch", "data", "runs"):
        (repository / name).symlink_to("/")
    assert revision.is_committed(revision.commit())


@pytest.mark.parametrize("has_git", [True, False])
def test_a_tree_without_a_repository_or_git_can_be_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_git: bool
) -> None:
    monkeypatch.setattr(revision, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    if not has_git:
        monkeypatch.setenv("PATH", str(tmp_path))
    assert image.image_reference() == f"{image.DEFAULT_NAME}:cpu-untracked"


def test_a_build_passes_its_settings_on_and_names_the_image(
    repository: Path,
    fake_engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    terminal: Terminal,
) -> None:
    calls = fake_engine("echo attestations $BUILDX_NO_DEFAULT_ATTESTATIONS")
    reference, out = (
        f"{image.DEFAULT_NAME}:cpu-{head(repository)}",
        terminal.out(image.main, "build"),
    )
    assert f"image: built {reference}\n" in out and "attestations 1\n" in out
    assert "committed" not in out
    given = f"--build-arg=VERSION=1.2.3 --build-arg=REVISION={head(repository)}"
    assert calls.read_text() == f"version\nbuild --tag={reference} {given} {repository}\n"
    (repository / "new").write_text("")
    options = {"BUILD_OPTIONS": "--network=host --build-arg='A=b c'"}
    settings = {"BASE_IMAGE": "mine:1", "PREBUILD": "0", "EXTRAS": "timm dali"}
    for name, value in (settings | options).items():
        monkeypatch.setenv(name, value)
    again = "BASE_IMAGE=mine:1 PREBUILD=0 EXTRAS='timm dali'`"
    out = terminal.out(image.main, "build")
    assert f"next: `make docker-train {again} trains in it" in out
    assert f"`make image push {again}, once you have committed all changes, publishes it" in out
    call = calls.read_text().splitlines()[-1]
    assert f"--build-arg=REVISION={head(repository)}-dirty" in call
    assert all(f" --build-arg={name}={value} " in call for name, value in settings.items())
    assert call.endswith(f"--network=host --build-arg=A=b c {repository}")


def test_a_failed_build_is_one_line_after_its_output(
    repository: Path,
    fake_engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    terminal: Terminal,
) -> None:
    assert repository
    fake_engine("echo 'Cannot connect to the daemon.' >&2; exit 1")  # it does not answer
    assert refusal(terminal, "build") == "image: docker: Cannot connect to the daemon."
    fake_engine('test "$1" != build')
    assert (
        "image: the build failed, " in (line := refusal(terminal, "build"))
        and "DEVICE, BASE" in line
    )
    monkeypatch.setitem(RETIRED, "EXTRAS=gone", "this")
    monkeypatch.setenv("EXTRAS", "timm gone")
    assert refusal(terminal, "build") == "image: EXTRAS=gone: retired: use this"


def test_only_a_committed_tree_whose_image_exists_is_pushed(
    repository: Path, fake_engine: FakeEngine, terminal: Terminal
) -> None:
    calls = fake_engine("exit 0")  # lists no image
    assert f"there is no image {image.DEFAULT_NAME}:cpu-" in refusal(terminal, "push")
    (repository / "pyproject.toml").write_text("")
    assert re.search(r"the tree is [0-9a-f]{12}-dirty, .*commit what", refusal(terminal, "push"))
    assert "push" not in calls.read_text()


@pytest.mark.parametrize("named", ["", "team/mine:7"])
def test_push_prints_the_image_in_the_registry(
    repository: Path,
    fake_engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    terminal: Terminal,
    named: str,
) -> None:
    calls = fake_engine(WILLING % "/dev/null")
    monkeypatch.setenv("IMAGE", named)
    monkeypatch.setenv("REGISTRY", "localhost:5000")
    out = terminal.out(image.main, "push")
    reference = named or f"{image.DEFAULT_NAME}:cpu-{head(repository)}"
    pushed = f"localhost:5000/{reference}"
    assert out.endswith(f"\n  target.image={pushed}\n")
    assert calls.read_text().endswith(f"tag {reference} {pushed}\npush {pushed}\n")


def test_a_refused_push_names_the_registry_and_what_to_do_if_the_tag_is_taken(
    repository: Path,
    fake_engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    terminal: Terminal,
) -> None:
    fake_engine("case $1 in image) echo 0123;; push) exit 1;; esac")
    monkeypatch.setenv("REGISTRY", "localhost:1")
    monkeypatch.setenv("DEVICE", "gpu")
    line, tag = refusal(terminal, "push"), f"{image.DEFAULT_NAME}:gpu-{head(repository)}"
    # Without DEVICE, an image for CPUs would get the tag of one for GPUs.
    again = f"make image push DEVICE=gpu IMAGE={tag}-2 REGISTRY=localhost:1"
    assert f"use target.image=localhost:1/{tag}, or run `{again}`. " in line
    assert "`docker login localhost:1`" in line
    fake_engine("exit 0")  # lists no image
    assert "run `make image DEVICE=gpu REGISTRY=localhost:1` first" in refusal(terminal, "push")
    (repository / "new").touch()
    assert "run `make image push DEVICE=gpu REGISTRY=localhost:1`" in refusal(terminal, "push")


@pytest.mark.usefixtures("repository")
def test_the_aws_cli_logs_the_engine_in_to_ecr(
    aws_cli: Aws,
    fake_engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    terminal: Terminal,
) -> None:
    aws_cli.client("ecr").create_repository(repositoryName="team/mine")
    aws_cli.calls.clear()
    monkeypatch.setenv("IMAGE", "team/mine:7")
    calls = fake_engine(WILLING % (tmp_path / "stdin"))
    out = terminal.out(image.main, "push")
    assert f"\n  target.image={REGISTRY}/team/mine:7\n" in out
    assert f"login --username=AWS --password-stdin {REGISTRY}\n" in calls.read_text()
    assert (tmp_path / "stdin").read_text()
    operations = [call.operation for call in aws_cli.calls]
    assert operations == ["DescribeRepositories", "GetAuthorizationToken"]


@pytest.mark.usefixtures("aws_cli", "repository")
def test_without_repository_or_credentials_push_is_one_line(
    fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, terminal: Terminal
) -> None:
    calls = fake_engine(WILLING % "/dev/null")
    monkeypatch.setenv("IMAGE", "mine")
    line = refusal(terminal, "push")
    assert "IMAGE=mine: there is no such repository" in line
    assert '`make setup-aws ARGS="Bucket=NAME Repository=mine"` creates it' in line
    assert "its role then pulls from there only, and stack=OTHER CreateBucket=false makes" in line
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert "redentials" in refusal(terminal, "push")
    assert "push" not in calls.read_text()


def test_layers_are_in_the_order_in_which_their_content_changes() -> None:
    found = re.finditer(
        r"/image_packages\.py /requirements|custom_op\.load|^COPY \S+ (\w+)/", DOCKERFILE, re.M
    )
    order = [match[1] or match[0] for match in found]
    assert order == [
        "/image_packages.py /requirements",
        "custom_op",
        "custom_op.load",
        "entry_point",
        "configs",
        "project",
    ]
    # What changes with every commit is last.
    assert DOCKERFILE.index("ARG REVISION") > DOCKERFILE.rindex("\nRUN")


def test_the_build_sees_only_the_requirements_that_the_image_installs() -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    admitted = [
        path for line in lines if line.startswith("!requirements") for path in ROOT.glob(line[1:])
    ]
    extras = DOCKERFILE.partition("to install besides job.in: ")[2].partition(".\n")[0]
    names = {"job", "torch", *extras.split(", ")}
    assert {path.stem for path in admitted} == names
    assert {f"{name}.txt" for name in names - {"torch"}} <= {path.name for path in admitted}
