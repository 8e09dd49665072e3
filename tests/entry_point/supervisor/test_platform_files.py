"""What a job reads from the platform's files, and what it writes to the failure file."""

import json
from pathlib import Path

import pytest

from entry_point.config.train_config import load_train_config
from entry_point.contract import hyperparameters
from entry_point.contract.failure import LIMIT, failure_text, write_failure
from entry_point.contract.platform_files import (
    ContractError,
    Hosts,
    check_channels,
    read_hosts,
    read_overrides,
    wait_for_names,
)
from entry_point.contract.run_folder import RunFolder
from entry_point.supervisor.job import rank_environment, training_command


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


def test_one_rank_needs_no_torchrun_and_two_hosts_meet_at_the_first() -> None:
    config, _ = load_train_config(["trainer.device=cpu"])
    assert "entry_point.supervisor.ranks" not in training_command(config, Hosts())
    hosts = Hosts("algo-2", ("algo-1", "algo-2"), "eth0")
    command = training_command(config, hosts)
    assert command[1:3] == ["-m", "entry_point.supervisor.ranks"]
    assert {"--nnodes=2", "--node-rank=1", "--master-addr=algo-1"} <= set(command)
    assert command[-2:] == ["-m", "entry_point.train"]


def test_a_missing_network_interface_is_ignored(tmp_path: Path) -> None:
    hosts = Hosts("algo-1", ("algo-1", "algo-2"), "no-such-interface")
    environment = rank_environment(hosts, RunFolder(tmp_path), tmp_path / "stop")
    assert environment.get("GLOO_SOCKET_IFNAME") != "no-such-interface"
    existing = Hosts("algo-1", ("algo-1", "algo-2"), "lo")
    assert (
        rank_environment(existing, RunFolder(tmp_path), tmp_path / "stop")["GLOO_SOCKET_IFNAME"]
        == "lo"
    )


def test_a_host_without_an_address_is_named_after_the_time_limit() -> None:
    hosts = Hosts("localhost", ("localhost", "no-such-host.invalid"))
    with pytest.raises(ContractError, match=r"no-such-host\.invalid"):
        wait_for_names(hosts, patience=0.0)


def test_the_failure_file_starts_with_the_error_and_fits_the_limit(tmp_path: Path) -> None:
    def deep(level: int) -> None:
        if level:
            deep(level - 1)
        raise ValueError("the reason")

    try:
        deep(50)
    except ValueError as error:
        text = failure_text(error)
    assert text.startswith("ValueError: the reason")
    assert 'raise ValueError("the reason")' in text
    assert len(text) <= LIMIT
    path = tmp_path / "output" / "failure"
    assert write_failure(path, text)
    assert not write_failure(path, "a later one")
    assert path.read_text() == text
