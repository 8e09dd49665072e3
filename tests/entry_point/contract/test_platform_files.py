"""What a job reads from the platform's files."""

import json
from pathlib import Path

import pytest

from entry_point.config.train_config import load_train_config
from entry_point.contract import hyperparameters
from entry_point.contract.platform_files import (
    ContractError,
    Hosts,
    check_channels,
    read_hosts,
    read_overrides,
    wait_for_names,
)
from entry_point.contract.run_folder import RunFolder


def write(folder: Path, name: str, content: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(content))


def test_without_files_there_is_one_host_and_no_override(tmp_path: Path) -> None:
    assert read_hosts(tmp_path) == Hosts()
    assert read_overrides(tmp_path) == []


def test_a_hosts_rank_is_its_position_in_the_platforms_list(tmp_path: Path) -> None:
    hosts = {"current_host": "algo-2", "hosts": ["algo-1", "algo-10", "algo-2"]}
    write(tmp_path, "resourceconfig", hosts)
    assert read_hosts(tmp_path).rank == 2


def test_a_host_that_is_not_on_the_list_is_an_error(tmp_path: Path) -> None:
    write(tmp_path, "resourceconfig", {"current_host": "algo-3", "hosts": ["algo-1"]})
    with pytest.raises(ContractError, match="'algo-3' is not among hosts"):
        read_hosts(tmp_path)


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
        check_channels(run)


def test_a_host_without_an_address_is_named_after_the_time_limit() -> None:
    hosts = Hosts("localhost", ("localhost", "no-such-host.invalid"))
    with pytest.raises(ContractError, match=r"no-such-host\.invalid"):
        wait_for_names(hosts, patience=0.0)
