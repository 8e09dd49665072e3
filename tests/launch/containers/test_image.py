"""What ``make image`` and ``make push`` ask the engine to do, and when they refuse."""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from entry_point.job.program import ExitCode, UserError
from launch import image, revision
from launch.engine import Engine, find_engine
from tests.launch.conftest import ACCOUNT, MANIFEST, REGION, Aws
from tests.launch.containers.conftest import FakeEngine

BASE = f"sha256:{'b' * 64}"
ID = f"sha256:{'1' * 64}"


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with one commit that replaces the project's."""
    folder = tmp_path / "repository"
    folder.mkdir()
    (folder / "pyproject.toml").write_text('version = "1.2.3"\n')
    (folder / "Dockerfile").write_text(
        "ARG AWS=aws/torch:2\nFROM ${AWS}-cpu AS cpu\nFROM ${BASE_IMAGE}\n"
    )
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "one"]):
        identity = ["-c", "user.name=t", "-c", "user.email=t@localhost"]
        subprocess.run(["git", "-C", str(folder), *identity, *command], check=True)
    for module in (image, revision):
        monkeypatch.setattr(module, "ROOT", folder)
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
    commit = revision.revision()
    assert f"--build-arg=REVISION={commit}" in image.build_arguments(BASE)
    code = repository / "entry_point" / "train.py"
    code.parent.mkdir()
    states = []
    for text in ("one", "two", "one"):
        code.write_text(text)
        states.append(revision.revision())
        assert f"--build-arg=REVISION={states[-1]}" in image.build_arguments(BASE)
    assert all(re.fullmatch(f"{commit}-dirty-[0-9a-f]{{8}}", state) for state in states)
    assert states[0] == states[2] != states[1]


def test_symlinked_environments_and_data_leave_the_tree_clean(repository: Path) -> None:
    ignored = (Path(__file__).resolve().parents[3] / ".gitignore").read_text()
    (repository / ".git" / "info" / "exclude").write_text(ignored)
    for name in (".venv", ".venv-launch", "data", "runs"):
        (repository / name).symlink_to("/")
    assert revision.is_committed(revision.commit())


def test_a_tree_without_a_repository_can_be_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(revision, "ROOT", tmp_path)
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
    monkeypatch.setenv("EXTRAS", "timm dali")
    monkeypatch.setenv("BUILD_OPTIONS", "--network=host --build-arg='A=b c'")
    arguments = image.build_arguments(BASE)
    assert "--build-arg=BASE_IMAGE=mine:1" in arguments
    assert "--build-arg=PREBUILD=0" in arguments
    assert "--build-arg=EXTRAS=dali timm" in arguments
    assert f"--build-arg=BASE_DIGEST={BASE}" in arguments
    assert "--build-arg=VERSION=1.2.3" in arguments
    assert arguments[-2:] == ["--network=host", "--build-arg=A=b c"]


def described(revision: str, **labels: str) -> str:
    """Script of an engine that has an image of this revision."""
    named = {image.INPUT_LABELS[name]: value for name, value in labels.items()}
    config = {"Labels": {image.REVISION_LABEL: revision, **named}}
    facts = {"Size": 6136000000, "Id": ID, "Architecture": "amd64", "Config": config}
    return f"case $1 in image) echo '{json.dumps([facts])}';; esac"


def test_build_prints_name_size_id_and_the_state_of_a_dirty_tree(
    repository: Path, fake_engine: FakeEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    calls = fake_engine(described(revision.revision()))
    image.build(find_engine())
    text = capfd.readouterr().out
    assert image.image_reference() in text and "dirty" not in text
    assert "6,136 MB" in text and ID in text
    assert re.search(rf"publishes it as {image.image_reference()}-[0-9a-f]{{8}}\n", text)
    assert f"build --progress=plain --tag={image.image_reference()}" in calls.read_text()
    assert str(repository) in calls.read_text()
    (repository / "Dockerfile").write_text("FROM other")
    image.build(find_engine())
    assert f"label names it {revision.revision()}\n" in capfd.readouterr().out


def with_base(folder: Path, base: Mapping[str, object]) -> str:
    """Script of an engine that has the base image once it has pulled it."""
    return f"""case $1 in
        pull) touch {folder}/pulled;;
        image) [ -e {folder}/pulled ] && echo '{json.dumps([base])}';;
    esac"""


@pytest.mark.parametrize(
    ("base_image", "pulled"),
    [("", "aws/torch:2-cpu"), ("cpu", "aws/torch:2-cpu"), ("my:1", "my:1")],
)
def test_a_base_that_is_missing_is_pulled_and_its_digest_becomes_a_label(
    repository: Path,
    fake_engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    base_image: str,
    pulled: str,
) -> None:
    monkeypatch.setenv("BASE_IMAGE", base_image)
    base = {"Id": ID, "RepoDigests": [f"aws/torch@{BASE}"]}
    calls = fake_engine(with_base(repository.parent, base))
    for _ in range(2):
        image.build_image(find_engine(), "x:y", repository)
        assert f"--build-arg=BASE_DIGEST={BASE} " in calls.read_text()
    assert calls.read_text().count(f"pull {pulled}\n") == 1


def test_a_base_that_was_built_here_is_known_by_its_id(
    repository: Path, fake_engine: FakeEngine
) -> None:
    fake_engine(with_base(repository.parent, {"Id": ID, "RepoDigests": []}))
    assert image.base_digest(find_engine(), "FROM local:1 AS cpu\n") == ID


def test_a_base_that_cannot_be_pulled_is_one_line(
    repository: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert repository
    monkeypatch.setenv("DEVICE", "tpu")
    fake_engine("case $1 in image | pull) exit 1;; esac")
    with pytest.raises(UserError, match=r"base image tpu could not be pulled, .* DEVICE"):
        image.build(find_engine())


def test_a_build_disables_attestations(
    repository: Path, fake_engine: FakeEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    answer = "build) echo attestations $BUILDX_NO_DEFAULT_ATTESTATIONS;; esac"
    fake_engine(described("").replace("esac", answer))
    image.build_image(find_engine(), "x:y", repository)
    assert "attestations 1" in capfd.readouterr().out


def test_a_failed_build_is_one_line_after_its_output(
    repository: Path, fake_engine: FakeEngine, capfd: pytest.CaptureFixture[str]
) -> None:
    assert repository
    answer = "build) echo 'ERROR: no such stage' >&2; exit 1;; esac"
    fake_engine(described("").replace("esac", answer))
    assert image.main(["build"]) == ExitCode.USAGE
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


def test_push_prints_the_image_in_the_registry(
    repository: Path,
    fake_engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert repository
    calls = fake_engine(described(revision.revision()))
    monkeypatch.setenv("REGISTRY", "localhost:5000")
    image.push(find_engine())
    reference = image.image_reference()
    match = re.search(r"pushed; .*\n  target\.image=(\S+)\n", capfd.readouterr().out)
    assert match and re.fullmatch(rf"localhost:5000/{reference}-[0-9a-f]{{8}}", match[1])
    assert f"tag {reference} {match[1]}\npush {match[1]}" in calls.read_text()


def test_images_of_one_commit_that_differ_in_their_inputs_have_their_own_tags() -> None:
    inputs = {"BASE_DIGEST": BASE, "EXTRAS": "timm", "PREBUILD": "1", "Architecture": "amd64"}
    others = {"BASE_DIGEST": ID, "EXTRAS": "", "PREBUILD": "0", "Architecture": "arm64"}

    def published(inputs: dict[str, str]) -> str:
        labels = {label: inputs[name] for name, label in image.INPUT_LABELS.items()}
        facts = {"Architecture": inputs["Architecture"], "Config": {"Labels": labels}}
        return image.published_reference("mine:cpu-0123456789ab", facts)

    tags = {published(inputs), *(published({**inputs, name: others[name]}) for name in inputs)}
    assert len(tags) == 5 and published(dict(inputs)) in tags
    assert all(re.fullmatch("mine:cpu-0123456789ab-[0-9a-f]{8}", tag) for tag in tags)


def test_podman_builds_in_docker_format(repository: Path, fake_engine: FakeEngine) -> None:
    calls = fake_engine(described(""))
    image.build_image(Engine((os.environ["ENGINE"],), is_podman=True), "x:y", repository)
    assert "build --format=docker --tag=x:y" in calls.read_text()


def test_a_failed_push_names_the_registry(
    repository: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert repository
    fake_engine(described(revision.revision()) + "; case $1 in push) exit 1;; esac")
    monkeypatch.setenv("REGISTRY", "localhost:1")
    with pytest.raises(UserError, match=r"REGISTRY=localhost:1, .*`docker login localhost:1`"):
        image.push(find_engine())


def test_a_custom_tag_is_pushed_only_if_the_image_is_of_this_commit(
    repository: Path, fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert repository
    monkeypatch.setenv("IMAGE", "team/mine:7")
    monkeypatch.setenv("REGISTRY", "localhost:5000")
    calls = fake_engine(described(revision.revision()))
    image.push(find_engine())
    assert "push localhost:5000/team/mine:7" in calls.read_text()
    fake_engine(described("0123456789ab"))
    calls.unlink()
    with pytest.raises(UserError, match=r"mine:7 was built from 0123456789ab.*make image"):
        image.push(find_engine())
    assert "push" not in calls.read_text()


def ecr_holds(aws: Aws, name: str, tag: str, config: str) -> str:
    """Create a repository with an image whose config has this digest; returns the manifest's."""
    ecr = aws.client("ecr")
    ecr.create_repository(repositoryName=name)
    manifest = {**MANIFEST, "config": {"digest": config, "size": 1}}
    done = ecr.put_image(repositoryName=name, imageManifest=json.dumps(manifest), imageTag=tag)
    aws.calls.clear()
    return str(done["image"]["imageId"]["imageDigest"])


def test_logging_in_to_ecr_passes_the_password_on_stdin_and_creates_nothing(
    aws: Aws, fake_engine: FakeEngine, tmp_path: Path
) -> None:
    digest = ecr_holds(aws, "mine", "1", ID)
    stdin = tmp_path / "stdin"
    calls = fake_engine(f"cat >{stdin}")
    registry, digests = image.log_in(find_engine(), "mine", "1")
    assert registry.endswith(".dkr.ecr.eu-west-1.amazonaws.com")
    assert digests == {digest, ID}
    password = stdin.read_text()
    login = f"login --username AWS --password-stdin {registry}\n"
    assert password and calls.read_text().endswith(login)
    operations = [call.operation for call in aws.calls]
    assert operations == ["DescribeRepositories", "BatchGetImage", "GetAuthorizationToken"]
    assert image.log_in(find_engine(), "mine", "2") == (registry, set())


@pytest.mark.parametrize("identity", [ID, ID.removeprefix("sha256:"), "manifest"])
def test_an_image_that_ecr_has_is_not_pushed_again(
    aws: Aws,
    repository: Path,
    fake_engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    identity: str,
) -> None:
    """Its ID is the digest of the config, in podman without a prefix, or that of the manifest."""
    assert repository
    digest = ecr_holds(aws, "mine", "gpu-7", ID)
    monkeypatch.setenv("IMAGE", "mine:gpu-7")
    facts = described(revision.revision())
    calls = fake_engine(facts.replace(ID, digest if identity == "manifest" else identity))
    image.push(find_engine())
    told = capfd.readouterr().out
    assert f"already there; pass this to `make sagemaker-train`:\n  target.image={ACCOUNT}" in told
    assert "push" not in calls.read_text()


def test_another_image_under_the_tag_is_one_line_and_replaces_nothing(
    aws: Aws,
    repository: Path,
    fake_engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert repository
    monkeypatch.setenv("IMAGE", "mine")
    built = described(revision.revision(), EXTRAS="timm")
    calls = fake_engine(built)
    image.build(find_engine())
    tag = capfd.readouterr().out.partition("publishes it as mine:")[2].strip()
    ecr_holds(aws, "mine", tag, BASE)
    assert image.main(["push"]) == ExitCode.USAGE
    line = capfd.readouterr().err
    there = f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/mine:{tag}"
    assert line.count("\n") == 1 and f"image: {there} is another image than mine:cpu-" in line
    assert f"use target.image={there}, or run" in line and "push" not in calls.read_text()
    # As the line says.
    monkeypatch.setenv("IMAGE", line.partition(" IMAGE=")[2].split()[0])
    image.build(find_engine())
    image.push(find_engine())
    assert f"target.image={there}-2\n" in capfd.readouterr().out
    assert f"push {there}-2\n" in calls.read_text()


@pytest.mark.usefixtures("aws")
def test_a_repository_that_does_not_exist_is_named_with_the_command_that_creates_it(
    fake_engine: FakeEngine,
) -> None:
    fake_engine("exit 0")
    with pytest.raises(UserError) as error:
        image.log_in(find_engine(), "mine", "1")
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
        image.log_in(find_engine(), "mine", "1")


def test_a_missing_region_for_ecr_is_one_line(
    fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_engine("exit 0")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="no AWS region: set AWS_DEFAULT_REGION"):
        image.log_in(find_engine(), "mine", "1")


DOCKERFILE = (Path(__file__).resolve().parents[3] / "Dockerfile").read_text()


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_the_bases_of_both_devices_are_one_release_of_aws(
    fake_engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    calls = fake_engine("exit 1")
    monkeypatch.setenv("DEVICE", device)
    with pytest.raises(UserError):
        image.base_digest(Engine((os.environ["ENGINE"],)), DOCKERFILE)
    variant = {"cpu": "cpu", "gpu": "cu133"}[device]
    registry = "public.ecr.aws/deep-learning-containers/pytorch"
    assert f"pull {registry}:2.14-{variant}-amzn2023-sagemaker\n" in calls.read_text()
    assert DOCKERFILE.count("pytorch:") == 1


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
    root = Path(image.__file__).resolve().parents[1]
    lines = (root / ".dockerignore").read_text().splitlines()
    admitted = [
        path for line in lines if line.startswith("!requirements") for path in root.glob(line[1:])
    ]
    extras = DOCKERFILE.partition("to install besides job.in: ")[2].partition(".\n")[0]
    names = {"job", "torch", *extras.split(", ")}
    assert {path.stem for path in admitted} == names
    assert {f"{name}.txt" for name in names - {"torch"}} <= {path.name for path in admitted}
