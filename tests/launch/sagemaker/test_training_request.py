"""Every override reaches the job unchanged, as every document shows it, and without torch or AWS.

What the settings of a launch become is recorded: tests/launch/test_recorded.py.
"""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from entry_point.config import compose
from entry_point.config.config_errors import ConfigError
from entry_point.config.hyperparameters import decode, read_overrides
from entry_point.config.task_config import MOST_OWN_METRICS
from entry_point.config.train_config import load_train_config
from entry_point.job.known_tasks import LOSS, TASKS
from launch import setup_aws
from launch.sagemaker import __main__ as sagemaker
from launch.sagemaker.config import LaunchConfig, load_launch_config
from launch.sagemaker.plan import plan
from tests.launch.conftest import MINIMAL, ROOT, Terminal


def request(*arguments: str) -> dict[str, Any]:
    return plan([*MINIMAL, *arguments], None).request


def prefix(*arguments: str) -> str:
    """Where the only channel of a launch lies."""
    (channel,) = request("data=folder", *arguments)["InputDataConfig"]
    return str(channel["DataSource"]["S3DataSource"]["S3Uri"])


@pytest.mark.parametrize("mode", ["File", "FastFile"])
@pytest.mark.parametrize("first", [True, False])
def test_the_short_form_of_a_channel_takes_its_other_fields(first: bool, mode: str) -> None:
    both = ["job.channels.training='s3://b/it\\'s/'", f"job.channels.training.mode={mode}"]
    words = both if first else both[::-1]
    assert prefix(*words) == "s3://b/it's/"
    assert request("data=folder", *words)["InputDataConfig"][0]["InputMode"] == mode


@pytest.mark.parametrize("short", ['"s3://b/other/"', "{s3: s3://b/other/}"])
def test_a_channel_of_a_file_is_replaced_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, short: str
) -> None:
    shutil.copytree(compose.CONFIGS, tmp_path / "configs")
    mine = tmp_path / "configs/target/mine.yaml"
    mine.write_text(f"# @package _global_\njob: {{channels: {{training: {short}}}}}\n")
    monkeypatch.setattr(compose, "CONFIGS", tmp_path / "configs")
    assert prefix() == "s3://b/other/"
    assert prefix("job.channels.training=s3://b/mine/") == "s3://b/mine/"
    if short.startswith('"'):
        with pytest.raises(ConfigError, match=r"must have job\.channels\.training\.s3 or"):
            request("job.channels.training.mode=File")


# Hydra reads the words true and false, in any case, as what they mean.
_TEXTS = st.text(min_size=1, max_size=60).filter(lambda text: text.lower() not in ("true", "false"))
_OVERRIDES = st.one_of(
    _TEXTS.map(lambda text: decode({"data.root": text})[0]),
    st.floats(1e-9, 10).map(lambda rate: f"optim.lr={rate!r}"),
    st.booleans().map(lambda on: f"trainer.report={on}"),
    st.sampled_from(["trainer.nproc_per_host=null", "model=resnet50", "experiment=debug"]),
    st.lists(st.floats(0.01, 1), min_size=3, max_size=3).map(lambda v: f"data.std={v}"),
    st.integers(1, 512).map(lambda size: f"data.image_size={size}"),
)


@settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(_OVERRIDES, min_size=1, max_size=6))
def test_overrides_make_the_same_config_in_the_container_as_locally(
    tmp_path_factory: pytest.TempPathFactory, overrides: list[str]
) -> None:
    overrides = ["data=folder", "data.resize=512", *overrides]
    contract: Path = tmp_path_factory.mktemp("config")
    sent = plan(overrides, None).request["HyperParameters"]
    (contract / "hyperparameters.json").write_text(json.dumps(sent))
    assert load_train_config(read_overrides(contract)) == load_train_config(overrides)


def test_the_first_part_of_a_key_separates_launch_and_job() -> None:
    of_job = ["model=resnet50", "+data.x=1", "~optim.momentum", "experiment=debug"]
    config, job = load_launch_config([*of_job, "job.name=a", "target=gpu", "job.tags.t=1"])
    assert (config.job.name, config.target.instance_type) == ("a", "ml.g6.4xlarge")
    assert job == of_job


def test_the_defaults_are_those_of_the_yaml() -> None:
    assert load_launch_config([])[0] == LaunchConfig()


@pytest.mark.parametrize("task", TASKS)
def test_a_job_sends_the_expressions_of_its_own_task(task: str) -> None:
    metrics = request(f"task.name={task}")["AlgorithmSpecification"]["MetricDefinitions"]
    found = {each["Name"] for each in metrics if each["Name"].startswith("validation:")}
    assert found == {f"validation:{metric.name}" for metric in (LOSS, *TASKS[task].metrics)}


def test_an_own_task_has_the_expressions_of_all_tasks_and_its_own() -> None:
    own = [f"own_{number}" for number in range(MOST_OWN_METRICS)]
    sent = request("task.name=project.tasks.Own", f"task.metrics=[{','.join(own)}]")
    names = [each["Name"] for each in sent["AlgorithmSpecification"]["MetricDefinitions"]]
    assert {"validation:own_0", "validation:accuracy", "validation:miou"} <= {*names}
    assert len(names) <= 40


@pytest.mark.usefixtures("dry_run")
@pytest.mark.parametrize("page", ["README.md", "docs/launch.md"])
def test_dry_runs_in_the_documents_print_a_request(terminal: Terminal, page: str) -> None:
    text = (ROOT / page).read_text().replace("\\\n", "")
    dry_runs = re.findall(r'^make ([a-z-]+) DRY_RUN=1 ARGS="(.*?)"', text, re.MULTILINE)
    assert dry_runs
    for target, arguments in dry_runs:
        words = arguments.split()
        if target == "setup-aws":
            assert "aws cloudformation deploy" in terminal.out(setup_aws.main, *words)
        else:
            assert "{" in terminal.out(sagemaker.main, "train", *words)


@pytest.mark.usefixtures("dry_run")
def test_every_member_of_a_request_that_the_documents_name_is_sent(terminal: Terminal) -> None:
    text = (ROOT / "docs/launch.md").read_text().replace(",...", "")
    text = text.replace("TrainingPlanArn=ARN", f"TrainingPlanArn={'a' * 50}")
    rows = text.partition("Add `job.request.` |\n|---|---|\n")[2].partition("\n\n")[0].splitlines()
    assert len(rows) > 10
    for row in rows:
        member, *more = re.findall("`(.*?)`", row.split("|")[2])
        settings = [each for each in more if each.startswith("target")]
        out = terminal.out(sagemaker.main, "train", *MINIMAL, f"job.request.{member}", *settings)
        name, _, value = member.partition("=")
        assert (name.split(".")[0] in json.loads(out)) == (value != "null")


# The launcher's program, and what it then may not have loaded.
BARE = """
import sys
from launch.sagemaker.{} import main
assert main(sys.argv[1:]) == 0
loaded = {{"torch", "numpy", "sagemaker", "boto3"}} & set(sys.modules)
assert not loaded, loaded
"""


@pytest.mark.parametrize(("program", "word"), [("__main__", "train"), ("hosting", "deploy")])
def test_a_dry_run_needs_neither_torch_nor_boto3_nor_credentials(program: str, word: str) -> None:
    arguments = [word, *(["JOB"] if word == "deploy" else []), *MINIMAL]
    done = subprocess.run(
        [sys.executable, "-c", BARE.format(program), *arguments],
        cwd=ROOT,
        env={"DRY_RUN": "1", "AWS_ENDPOINT_URL": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert "{" in done.stdout
