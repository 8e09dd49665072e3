"""Jobs of several hosts, with a supervisor each; here the hosts are addresses of one machine."""

import json
import multiprocessing
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file

from entry_point.job.hosts import Hosts
from entry_point.job.program import ExitCode
from entry_point.job.ranks import rank_variables
from tests import forkserver
from tests.entry_point.job import isolated_host
from tests.entry_point.training import forked_ranks
from tests.entry_point.training.training_jobs import read_records, run_job, timeless, write_job
from tests.forked_python import forked_python

HOSTS = ("127.0.0.1", "127.0.0.2")


def run_hosts(
    folder: Path,
    data: Path,
    ranks: Sequence[int],
    overrides: Sequence[str] = (),
    variables: Sequence[Mapping[str, str]] | None = None,
) -> list[tuple[int, str]]:
    """Run a job with so many ranks on each of its two hosts; returns exit codes and outputs.

    Each host reads its place in SageMaker's file, unless it has environment variables for it. A
    network of their own lets the hosts meet at a port that is always the same.
    """
    isolated_host.require()
    jobs: list[tuple[list[str], dict[str, str]]] = []
    for rank, (name, count) in enumerate(zip(HOSTS, ranks, strict=True)):
        root = folder / name
        here = [*overrides, f"trainer.nproc_per_host={count}"]
        command, environment = write_job(root, data, here)
        if variables is None:
            hosts = {"current_host": name, "hosts": HOSTS, "network_interface_name": "lo"}
            (root / "input/config/resourceconfig.json").write_text(json.dumps(hosts))
        jobs.append((command[1:], {**environment, **(variables[rank] if variables else {})}))
    both = forkserver.SERVER.Process(target=_isolate_and_run, args=(jobs,))
    both.start()
    both.join(240)
    assert both.exitcode == 0
    roots = [folder / name for name in HOSTS]
    return [(int((root / "code").read_text()), (root / "log").read_text()) for root in roots]


def _isolate_and_run(jobs: Sequence[tuple[Sequence[str], Mapping[str, str]]]) -> None:
    """Run in a process of its own: start each host's job as a child of this process."""
    isolated_host.enter()
    running = {}
    for arguments, environment in jobs:
        root = Path(environment["ML_ROOT"])
        details = (arguments, root / "log", None, environment, None, forked_ranks.prepare)
        running[root] = multiprocessing.get_context("fork").Process(
            target=forkserver.become, args=details
        )
        running[root].start()
    for root, process in running.items():
        process.join()
        (root / "code").write_text(str(process.exitcode))


def test_every_host_refuses_what_together_they_cannot_do_with_the_same_line(
    tmp_path: Path, photo_folder: Path
) -> None:
    """Each host alone could share the batch among its ranks."""
    overrides = ["trainer.batch_size=12", "optim.accumulate=6"]
    refused = "trainer.batch_size=12: must be a multiple of 24, ranks=4 x optim.accumulate=6"
    ended = run_hosts(tmp_path, photo_folder, (2, 2), overrides)
    for name, (code, output) in zip(HOSTS, ended, strict=True):
        assert code == ExitCode.USAGE
        lines = [line for line in output.splitlines() if line.startswith("train:")]
        assert lines == [f"train: {refused}"]
        assert (tmp_path / name / "output/failure").read_text() == refused


TORCH = [
    {"RANK": f"{rank}", "WORLD_SIZE": "2", "MASTER_ADDR": HOSTS[0], "MASTER_PORT": "23456"}
    for rank in (0, 1)
]
TORCHRUN = [
    {"PET_NNODES": "2", "PET_NODE_RANK": f"{rank}", "PET_MASTER_ADDR": HOSTS[0]} for rank in (0, 1)
]


def test_two_hosts_of_another_launcher_train_as_two_ranks_of_one_host(
    tmp_path: Path, photo_folder: Path
) -> None:
    """Equal weights: together, the hosts see each image once, and both apply every gradient."""
    ended = run_hosts(tmp_path, photo_folder, (1, 1), variables=TORCHRUN)
    assert [code for code, _ in ended] == [ExitCode.FINISHED] * 2, ended
    assert "2 x CPU" in ended[0][1]
    run_job(tmp_path / "one", photo_folder, ["trainer.nproc_per_host=2"])
    first, second, one = (tmp_path / name for name in (*HOSTS, "one"))
    assert timeless(read_records(first)) == timeless(read_records(one))
    weights = [load_file(root / "model/model.safetensors") for root in (first, one)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0] | weights[1])
    assert not (second / "model/model.safetensors").exists()
    assert not list((second / "checkpoints").glob("*"))


def test_a_job_of_several_hosts_resumes_from_the_first_hosts_run_folder(
    tmp_path: Path, photo_folder: Path
) -> None:
    """The second host starts in an empty folder, as a new pod or node does."""
    run_hosts(tmp_path, photo_folder, (1, 1), ["trainer.epochs=1"], TORCH)
    shutil.rmtree(tmp_path / HOSTS[1])
    ended = run_hosts(tmp_path, photo_folder, (1, 1), ["trainer.epochs=2"], TORCH)
    assert [code for code, _ in ended] == [ExitCode.FINISHED] * 2, ended
    assert read_records(tmp_path / HOSTS[0])[-1]["step"] == 6
    assert "resuming from" in ended[0][1]


def test_a_wrong_rank_is_the_reason_in_the_failure_file(tmp_path: Path, photo_folder: Path) -> None:
    command, environment = write_job(tmp_path, photo_folder)
    environment |= {"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "127.0.0.1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == ExitCode.USAGE
    (line,) = done.stderr.splitlines()
    assert line.startswith("train: RANK=2: must be the number of this host")
    assert (tmp_path / "output/failure").read_text() == line.removeprefix("train: ")


def test_the_job_of_one_host_ignores_the_variables_that_are_left_of_another(
    tmp_path: Path, photo_folder: Path
) -> None:
    """`make local-train` in a terminal of a pod: SageMaker's file says that there is one host."""
    command, environment = write_job(tmp_path, photo_folder, ["trainer.epochs=1"])
    hosts = {"current_host": "algo-1", "hosts": ["algo-1"]}
    (tmp_path / "input/config/resourceconfig.json").write_text(json.dumps(hosts))
    environment |= {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "host-0", "PET_NNODES": "2"}
    job = forkserver.start(
        command[1:], tmp_path / "log", environment=environment, prepare=forked_ranks.prepare
    )
    output, _ = job.communicate(timeout=240)
    assert job.returncode == ExitCode.FINISHED, output
    assert read_records(tmp_path)[-1]["step"] == 3


def test_a_torchrun_of_the_users_starts_the_ranks(tmp_path: Path, photo_folder: Path) -> None:
    run_job(tmp_path / "ours", photo_folder, ["trainer.nproc_per_host=2"])
    (_, *program), environment = write_job(
        tmp_path / "theirs", photo_folder, module="entry_point.train"
    )
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    command, log = [*torchrun, "--nproc-per-node=2", *program], tmp_path / "log"
    environment["PYTHON_EXEC"] = str(tmp_path / "python")  # of the ranks
    with forked_python(tmp_path / "python"):
        done = forkserver.start(command, log, environment=environment)
        output, _ = done.communicate(timeout=240)
    assert done.returncode == 0, output
    ours, theirs = (timeless(read_records(tmp_path / name)) for name in ("ours", "theirs"))
    assert ours == theirs


def isolate() -> None:
    isolated_host.enter()
    forked_ranks.prepare()


def test_two_ranks_train_on_a_host_that_cannot_resolve_its_own_name(
    tmp_path: Path, photo_folder: Path
) -> None:
    isolated_host.require()
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
