"""What a job reads from the platform's files."""

import json
from pathlib import Path

import pytest

from entry_point.config import hyperparameters
from entry_point.config.hyperparameters import read_overrides
from entry_point.config.train_config import load_train_config
from entry_point.data.errors import DataError
from entry_point.data.loader import dataset_root, open_training_set
from entry_point.job.run_folder import RUN_NAME, ContractError, RunFolder
from tests.platform_files import write_input_config


def write(folder: Path, name: str, content: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(content))


def test_without_files_there_is_no_override(tmp_path: Path) -> None:
    assert read_overrides(tmp_path) == []


def test_launch_overrides_are_read_and_a_tuning_jobs_keys_win(tmp_path: Path) -> None:
    content = {**hyperparameters.encode(["optim.lr=0.1", "data.root='a, b'"]), "optim.lr": "0.2"}
    write(tmp_path, "hyperparameters", content)
    config, _ = load_train_config(["data=folder", *read_overrides(tmp_path)])
    assert (config.optim.lr, config.data.root) == (0.2, "a, b")


@pytest.mark.parametrize("text", ["{", "[]", "3"])
def test_a_file_that_is_not_a_json_object_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "hyperparameters.json").write_text(text)
    with pytest.raises(ContractError, match=r"hyperparameters\.json"):
        read_overrides(tmp_path)


def test_a_missing_channel_is_named(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    write(run.platform_config, "inputdataconfig", {"training": {"TrainingInputMode": "File"}})
    with pytest.raises(ContractError, match="channel 'training'"):
        run.check_channels(hosts=1)


def test_a_share_of_a_channel_for_each_of_several_hosts_is_refused(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    channels = {
        name: {"TrainingInputMode": "FastFile", "S3DistributionType": distribution}
        for name, distribution in (("all", "FullyReplicated"), ("training", "ShardedByS3Key"))
    }
    write(run.platform_config, "inputdataconfig", channels)
    for name in channels:
        (run.channels / name).mkdir(parents=True)
    run.check_channels(hosts=1)
    with pytest.raises(ContractError, match=r"channel 'training': ShardedByS3Key .* the 2 hosts"):
        run.check_channels(hosts=2)


@pytest.mark.parametrize("program", ["train.py", '"train.py"'])
def test_a_script_sent_with_the_job_is_refused(tmp_path: Path, program: str) -> None:
    sent = {"sagemaker_program": program, "sagemaker_submit_directory": '"s3://bucket/code"'}
    write(tmp_path, "hyperparameters", {**hyperparameters.encode(["a=1"]), **sent})
    with pytest.raises(ContractError, match=r"sagemaker_program=train\.py: .* job\.code=true"):
        read_overrides(tmp_path)


def test_a_script_that_sagemakers_toolkit_runs_may_start_this_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SM_USER_ENTRY_POINT", "entry_point/__main__.py")
    sent = {"sagemaker_program": "entry_point/__main__.py", "optim.lr": "0.1"}
    write(tmp_path, "hyperparameters", sent)
    assert read_overrides(tmp_path) == ["optim.lr=0.1"]


@pytest.mark.parametrize(
    ("channels", "overrides", "is_demo"),
    [
        ([], [], True),
        (["pretrained", "code", "code-0a1b"], [], True),
        (["training"], [], False),
        (["photos"], [], False),
        (["mine"], ["model.weights='/opt/ml/input/data/mine/a.pth'"], True),
        (["mine"], ["model.weights=mine"], True),
        (["mine"], ["logger_kwargs.tensorboard.comment=mine"], False),
    ],
)
def test_the_demo_is_trained_where_no_channel_may_hold_a_dataset(
    channels: list[str], overrides: list[str], is_demo: bool, tmp_path: Path
) -> None:
    """A channel of any name was given for its images."""
    run = RunFolder(tmp_path)
    for channel in channels:
        (run.channels / channel).mkdir(parents=True)
    config, _ = load_train_config(overrides, has_channels=run.has_data(overrides))
    assert (config.data.format == "demo") is is_demo
    if channels == ["photos"]:
        with pytest.raises(DataError, match=f"but photos: add data.root={run.channels}/photos, or"):
            dataset_root(config.data, run.channels)


@pytest.mark.parametrize("training", ["training", "train"])
@pytest.mark.parametrize("validation", ["validation", "val"])
def test_a_channel_for_validation_is_validated_on(
    training: str, validation: str, photo_folder: Path, tmp_path: Path
) -> None:
    for channel, split in {training: "train", validation: "val"}.items():
        (tmp_path / channel).symlink_to(photo_folder / split)
    (tmp_path / "pretrained").mkdir()
    dataset = open_training_set(load_train_config(["data=auto"])[0].data, tmp_path)
    given = open_training_set(load_train_config([f"data.root={photo_folder}"])[0].data, tmp_path)
    for split in ("train", "val"):
        assert len(dataset.source(split)) == len(given.source(split))


def test_a_channel_with_its_own_splits_is_the_whole_dataset(tmp_path: Path) -> None:
    for folder in ("training/train", "training/val", "validation"):
        (tmp_path / folder).mkdir(parents=True)
    config, _ = load_train_config(["data=auto"])
    assert dataset_root(config.data, tmp_path) == tmp_path / "training"


def test_two_channels_for_one_split_are_refused_by_name(tmp_path: Path) -> None:
    for channel in ("training", "train", "validation"):
        (tmp_path / channel).mkdir()
    config, _ = load_train_config(["data=auto"])
    with pytest.raises(DataError, match="train and training are both for train; remove or rename"):
        dataset_root(config.data, tmp_path)


def test_a_run_of_this_machine_is_resumed_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(RUN_NAME, raising=False)
    assert RunFolder(tmp_path).resumed_by == "the same command"
    monkeypatch.setenv(RUN_NAME, "20261126-203509")
    assert RunFolder(tmp_path).resumed_by == "the same command with name=20261126-203509"


def test_a_job_of_sagemaker_is_resumed_by_its_checkpoints(tmp_path: Path) -> None:
    write_input_config(tmp_path, [])
    assert RunFolder(tmp_path).resumed_by == "a job with the same checkpoints"
