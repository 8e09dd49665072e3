"""How ranks find each other: on a host without a network, and on one that has several."""

from pathlib import Path

from entry_point.job.hosts import Hosts
from entry_point.job.ranks import rank_variables
from tests import forkserver
from tests.entry_point.job import isolated_host
from tests.entry_point.training import forked_ranks
from tests.entry_point.training.training_jobs import read_records, write_job


def isolate() -> None:
    isolated_host.enter()
    forked_ranks.prepare()


def test_two_ranks_train_on_a_host_that_cannot_resolve_its_own_name(
    tmp_path: Path, photo_folder: Path
) -> None:
    command, environment = write_job(tmp_path, photo_folder, ["trainer.nproc_per_host=2"])
    job = forkserver.start(command[1:], tmp_path / "log", environment=environment, prepare=isolate)
    output, _ = job.communicate(timeout=240)
    assert job.returncode == 0, output
    assert read_records(tmp_path)[-1]["step"] == 6


def test_a_missing_network_interface_is_ignored(tmp_path: Path) -> None:
    def chosen(interface: str) -> str | None:
        hosts = Hosts(0, 2, ("algo-1", "algo-2"), interface=interface)
        return rank_variables(hosts, 1, 29400, tmp_path).get("GLOO_SOCKET_IFNAME")

    assert chosen("no-such-interface") != "no-such-interface"
    assert chosen("lo") == "lo"
