"""How the supervisor starts the ranks: their command and their environment."""

import subprocess
import sys
from pathlib import Path

from entry_point.config.train_config import load_train_config
from entry_point.contract.hosts import Hosts
from entry_point.contract.run_folder import RunFolder
from entry_point.supervisor.job import rank_environment, training_command
from tests.entry_point.supervisor import isolated_host
from tests.entry_point.training.training_jobs import read_records, write_job


def test_one_rank_needs_no_torchrun_and_two_hosts_meet_at_the_first() -> None:
    config, _ = load_train_config(["trainer.device=cpu"])
    assert "entry_point.supervisor.ranks" not in training_command(config, Hosts())
    hosts = Hosts(1, 2, ("algo-1", "algo-2"))
    command = training_command(config, hosts)
    assert command[1:3] == ["-m", "entry_point.supervisor.ranks"]
    assert {"--nnodes=2", "--node-rank=1", "--master-addr=algo-1"} <= set(command)
    assert command[-2:] == ["-m", "entry_point.train"]


def test_two_ranks_train_on_a_host_that_cannot_resolve_its_own_name(
    tmp_path: Path, photo_folder: Path
) -> None:
    command, environment = write_job(tmp_path, photo_folder, ["trainer.nproc_per_host=2"])
    isolated = ["unshare", "--map-root-user", "--net", "--uts", sys.executable]
    done = subprocess.run(
        [*isolated, isolated_host.__file__, *command],
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert read_records(tmp_path)[-1]["step"] == 6


def test_a_missing_network_interface_is_ignored(tmp_path: Path) -> None:
    hosts = Hosts(0, 2, ("algo-1", "algo-2"), interface="no-such-interface")
    environment = rank_environment(hosts, RunFolder(tmp_path), tmp_path / "stop")
    assert environment.get("GLOO_SOCKET_IFNAME") != "no-such-interface"
    existing = Hosts(0, 2, ("algo-1", "algo-2"), interface="lo")
    assert (
        rank_environment(existing, RunFolder(tmp_path), tmp_path / "stop")["GLOO_SOCKET_IFNAME"]
        == "lo"
    )
