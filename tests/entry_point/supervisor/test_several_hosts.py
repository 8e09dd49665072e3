"""Jobs of several hosts, with a supervisor each; here the hosts are addresses of one machine."""

import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from entry_point.contract import exit_codes
from tests.entry_point.supervisor import isolated_host
from tests.entry_point.training.training_jobs import read_records, write_job

HOSTS = ("127.0.0.1", "127.0.0.2")


def run_hosts(
    folder: Path, data: Path, ranks: Sequence[int], overrides: Sequence[str] = ()
) -> list[tuple[int, str]]:
    """Run a job with so many ranks on each of its two hosts; returns exit codes and outputs.

    A network of their own lets them meet at a port that is always the same.
    """
    together = ["pids=()"]
    for name, count in zip(HOSTS, ranks, strict=True):
        root = folder / name
        here = [*overrides, f"trainer.nproc_per_host={count}"]
        command, environment = write_job(root, data, here)
        hosts = {"current_host": name, "hosts": HOSTS, "network_interface_name": "lo"}
        (root / "input/config/resourceconfig.json").write_text(json.dumps(hosts))
        line = f"ML_ROOT={root} {shlex.join(command)} > {root}/log 2>&1"
        together.append(f"({line}; echo $? > {root}/code) & pids+=($!)")
    together.append("wait")
    isolated = ["unshare", "--map-root-user", "--net", "--uts", sys.executable]
    script = ["/bin/bash", "-c", "\n".join(together)]
    subprocess.run(
        [*isolated, isolated_host.__file__, *script], env=environment, check=True, timeout=240
    )
    return [
        (int((folder / name / "code").read_text()), (folder / name / "log").read_text())
        for name in HOSTS
    ]


def test_hosts_with_different_numbers_of_ranks_share_a_batch(
    tmp_path: Path, photo_folder: Path
) -> None:
    """A multiple of all 3 ranks, but not of twice the first host's."""
    ended = run_hosts(tmp_path, photo_folder, (2, 1), ["trainer.batch_size=18"])
    assert [code for code, _ in ended] == [exit_codes.FINISHED] * 2, ended
    assert "3 x CPU" in ended[0][1]
    assert read_records(tmp_path / HOSTS[0])[-1]["step"] == 4


@pytest.mark.parametrize("ranks", [(2, 1), (1, 2)])
def test_every_host_refuses_a_batch_that_all_their_ranks_cannot_share_with_the_same_line(
    ranks: tuple[int, int], tmp_path: Path, photo_folder: Path
) -> None:
    """A multiple of twice the first host's ranks, and of twice the second's."""
    ended = run_hosts(tmp_path, photo_folder, ranks, ["trainer.batch_size=16"])
    refused = "trainer.batch_size=16: must be a multiple of the 3 ranks that share it"
    for name, (code, output) in zip(HOSTS, ended, strict=True):
        assert code == exit_codes.USAGE
        lines = [line for line in output.splitlines() if line.startswith("train:")]
        assert lines == [f"train: {refused}"]
        assert (tmp_path / name / "output/failure").read_text() == refused
