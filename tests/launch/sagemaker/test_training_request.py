"""Every override reaches the job unchanged; a wrong one is named.

What the settings of a launch become is recorded: tests/launch/test_recorded.py.
"""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from entry_point.config import compose
from entry_point.config.config_errors import ConfigError
from entry_point.config.hyperparameters import decode, read_overrides
from entry_point.config.train_config import load_train_config
from entry_point.job.program import UserError
from launch.sagemaker.config import load_launch_config
from launch.sagemaker.plan import plan
from tests.launch.minimal_job import planned, sent


@pytest.mark.parametrize("mode", ["File", "FastFile"])
@pytest.mark.parametrize("first", [True, False])
def test_the_short_form_of_a_channel_takes_its_other_fields(first: bool, mode: str) -> None:
    both = ["job.channels.training='s3://b/it\\'s/'", f"job.channels.training.mode={mode}"]
    (channel,) = sent(*(both if first else both[::-1]), "data=folder")["InputDataConfig"]
    assert channel["DataSource"]["S3DataSource"]["S3Uri"] == "s3://b/it's/"
    assert channel["InputMode"] == mode


@pytest.mark.parametrize("short", ['"s3://b/other/"', "{s3: s3://b/other/}"])
def test_a_channel_of_a_file_is_replaced_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, short: str
) -> None:
    shutil.copytree(compose.CONFIGS, tmp_path / "configs")
    mine = tmp_path / "configs/target/mine.yaml"
    mine.write_text(f"# @package _global_\njob: {{channels: {{training: {short}}}}}\n")
    monkeypatch.setattr(compose, "CONFIGS", tmp_path / "configs")
    (channel,) = sent("data=folder")["InputDataConfig"]
    assert channel["DataSource"]["S3DataSource"]["S3Uri"] == "s3://b/other/"
    (channel,) = sent("data=folder", "job.channels.training=s3://b/mine/")["InputDataConfig"]
    assert channel["DataSource"]["S3DataSource"]["S3Uri"] == "s3://b/mine/"
    if short.startswith('"'):
        with pytest.raises(ConfigError, match=r"must have job\.channels\.training\.s3 or"):
            planned("job.channels.training.mode=File")


# Hydra reads the words true and false, in any case, as what they mean.
_TEXTS = st.text(max_size=60).filter(lambda text: text.lower() not in ("true", "false"))
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
    request = plan(overrides, None).request
    (contract / "hyperparameters.json").write_text(json.dumps(request["HyperParameters"]))
    assert load_train_config(read_overrides(contract)) == load_train_config(overrides)


def test_first_part_of_the_key_separates_launch_and_job_overrides() -> None:
    of_job = ["model=resnet50", "+data.x=1", "~optim.momentum", "experiment=debug"]
    config, job = load_launch_config([*of_job, "job.name=a", "target=gpu", "job.tags.t=1"])
    assert (config.job.name, config.target.instance_type) == ("a", "ml.g6.4xlarge")
    assert job == of_job


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("jbo.role=x", r"^jbo\.role=x: no such key; did you mean job\.role\?$"),
        ("role=x", r"^role=x: no such key; did you mean job\.role\?$"),
        ("instance_type=ml.m5.large", r"did you mean target\.instance_type\?$"),
        ("resume_form=x", r"did you mean resume_from\?$"),
        ("job.rolle=x", r"^job\.rolle=x: no such key; did you mean job\.role\?$"),
        ("target=gpuu", "^target=gpuu: must be one of cpu, gpu, .*; did you mean gpu"),
        ("job=training", "^job=training: is a group of settings: set job.name=training"),
        ("target.instance_count=many", "target.instance_count"),
        ("job.channels.training={s3:s3://b/x,modus:File}", "modus"),
        ("job.channels=s3://b/x", "job.channels"),
        ("optim.lr=0.1,0.2", r"^optim\.lr=0\.1,0\.2: has several values"),
        ("a=[1", r"a=\[1: not an override"),
        ("job", "not an override"),
        ("resume_from=/tmp/run", "^resume_from=/tmp/run: must be the name of a job"),
        ("job.channels.x={mode:File}", r"^job\.channels\.x: must have job\.channels\.x\.s3 or"),
        ("job.channels.x={s3:s3://b/,source:{A:{}}}", r"^job\.channels\.x: .* and not both"),
        ("job.channels.training={s3:s3://b/a/,mode:Pipe}", "Input should be 'File' or 'FastFile'"),
    ],
)
def test_invalid_override_is_named(override: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason) as caught:
        planned(override)
    assert "\n" not in str(caught.value)
