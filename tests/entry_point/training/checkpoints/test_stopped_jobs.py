"""A job that its platform stops leaves a model; one that a person stops does not."""

import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from torch.optim.swa_utils import update_bn

from entry_point.config.train_config import load_train_config
from entry_point.data.loader import build_loader, open_source
from entry_point.job.devices import Devices
from entry_point.job.program import ExitCode
from entry_point.job.ranks import ONE_REQUEST_S
from entry_point.job.stop import export_within
from entry_point.training.input import loader_spec
from entry_point.training.learner import statistics_steps
from entry_point.training.models import Normalize
from project.models import small_net
from tests import commands, forkserver
from tests.entry_point.job.test_processes import ENDLESS, TWO_RANKS, wait_for_steps
from tests.entry_point.training import forked, forked_ranks
from tests.entry_point.training.checkpoints import hung_reads, stuck_exports
from tests.entry_point.training.checkpoints.test_best_weights import OVERRIDES as WORSENS
from tests.entry_point.training.checkpoints.test_hung_reads import wait_until
from tests.entry_point.training.training_jobs import (
    TINY,
    read_records,
    run_job,
    start_job,
    write_job,
)
from tests.forkserver import Program

SMALL = ("model.name=project.models.small_net", "model.kwargs.width=8")
STUCK = "model.name=tests.entry_point.training.checkpoints.stuck_exports.net"
WHOLE = ["classes.json", "config.yaml", "model.safetensors"]
CPU = torch.device("cpu")


def start(root: Path, data: Path, overrides: Sequence[str], module: str = "entry_point") -> Program:
    """Start or resume a job, and wait until it has trained for more than an epoch."""
    metrics = root / "output/data/metrics.jsonl"
    before = metrics.read_text().count('"loss"') if metrics.exists() else 0
    process = start_job(root, data, [*ENDLESS, *overrides], module=module)
    wait_for_steps(root, process, before + 4)
    return process


def stop(process: Program, number: signal.Signals = signal.SIGTERM) -> str:
    """Stop the job; returns its output."""
    process.send_signal(number)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == ExitCode.STOPPED, output
    return output


def files(root: Path) -> list[str]:
    """The names in the model folder, of hidden files too, without those of own code."""
    return sorted(each.name for each in (root / "model").iterdir() if each.name != "code")


def unfinished(root: Path) -> dict[str, int]:
    config: dict[str, Any] = yaml.safe_load((root / "model/config.yaml").read_text())
    return dict(config.get("unfinished", {}))


def newest_checkpoint(root: Path) -> dict[str, Any]:
    path = sorted((root / "checkpoints").glob("step-*.pt"))[-1]
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def assert_exported(root: Path, state: dict[str, Any], weights: str = "model") -> None:
    """The model has these weights of a checkpoint, and says from which step they are."""
    found = load_file(root / "model/model.safetensors")
    saved, progress = state["learner"][weights], state["progress"]
    assert found.keys() == saved.keys()
    assert all(torch.equal(found[name], value) for name, value in saved.items())
    assert unfinished(root) == {"epoch": progress["epoch"], "step": steps(state)}


def steps(state: dict[str, Any]) -> int:
    """That the run of a checkpoint has taken, of three per epoch."""
    return reached(state) * 3 + int(state["progress"]["step"])


def reached(state: dict[str, Any]) -> int:
    """The epoch that a checkpoint is in."""
    return int(state["progress"]["epoch"])


def predicted(root: Path, images: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What `predict` prints."""
    output = root / "predictions" / str(len(list(root.glob("predictions/*"))))
    where = [f"model_dir={root / 'model'}", f"input={images}", f"output_dir={output}"]
    before = [*sys.path]
    assert commands.predict([*where, "pipeline=pillow", "pipeline.num_workers=0"]) == 0
    sys.path[:] = before  # of the model's own code, which jobs started from here would take, too
    return capsys.readouterr().err


@pytest.mark.parametrize("ranks", [(), TWO_RANKS], ids=["one", "two"])
def test_a_stopped_job_leaves_its_model_until_the_resumed_one_leaves_the_finished(
    ranks: tuple[str, ...], tmp_path: Path, photo_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [*SMALL, *ranks]
    output = stop(start(tmp_path, photo_folder, overrides))
    assert output.count(f"wrote an unfinished model to {tmp_path}/model") == 1
    assert files(tmp_path) == WHOLE
    state = newest_checkpoint(tmp_path)
    assert_exported(tmp_path, state)
    said = f"weights of step {unfinished(tmp_path)['step']}, after {reached(state)} of 100000 epo"
    assert predicted(tmp_path, photo_folder / "val", capsys).count(said) == 1
    # Stopped again, it is replaced.
    stop(start(tmp_path, photo_folder, overrides))
    again = newest_checkpoint(tmp_path)
    assert steps(again) > steps(state)
    assert_exported(tmp_path, again)
    run_job(tmp_path, photo_folder, [*ENDLESS, *overrides, f"trainer.epochs={reached(again) + 1}"])
    assert files(tmp_path) == WHOLE and not unfinished(tmp_path)
    assert "unfinished" not in predicted(tmp_path, photo_folder / "val", capsys)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("module", ["entry_point", "entry_point.train"])
def test_a_person_who_stops_a_job_gets_no_model(
    module: str, number: signal.Signals, tmp_path: Path, photo_folder: Path
) -> None:
    output = stop(start(tmp_path, photo_folder, (), module), number)
    assert files(tmp_path) == [] and "unfinished" not in output
    assert list((tmp_path / "checkpoints").glob("step-*.pt"))


def test_a_finished_model_stays_if_a_person_stops_the_run_that_continues_it(
    tmp_path: Path, photo_folder: Path
) -> None:
    run_job(tmp_path, photo_folder, ["trainer.epochs=1"])
    before = (tmp_path / "model/model.safetensors").read_bytes()
    stop(start(tmp_path, photo_folder, ()), signal.SIGINT)
    assert (tmp_path / "model/model.safetensors").read_bytes() == before
    assert not unfinished(tmp_path)


def test_what_belongs_to_an_earlier_model_goes_with_it(tmp_path: Path, photo_folder: Path) -> None:
    report = ["trainer.epochs=1", "trainer.report=true"]
    run_job(tmp_path, photo_folder, report)
    others = [tmp_path / "output/data" / name for name in ("report.html", "summary.png")]
    assert all(path.is_file() for path in others)
    stop(start(tmp_path, photo_folder, ()))
    assert unfinished(tmp_path) and not any(path.exists() for path in others)


@pytest.mark.parametrize("averaged", [(), ("optim.ema_decay=0.5",)])
def test_the_best_weights_so_far_are_exported_if_the_run_would_export_the_best(
    averaged: tuple[str, ...], tmp_path: Path, photo_folder: Path
) -> None:
    overrides = [*WORSENS, *averaged, *ENDLESS, "trainer.report=false", "trainer.export=best"]
    # In the third epoch or later.
    code = forked.run_until_step(tmp_path, photo_folder, overrides, 7, signal.SIGTERM)
    assert code == ExitCode.STOPPED, (tmp_path / "log").read_text()
    best = torch.load(tmp_path / "checkpoints/best.pt", weights_only=True)
    assert_exported(tmp_path, best, "ema" if averaged else "model")


def test_the_last_weights_are_exported_if_no_epoch_is_the_best_yet(
    tmp_path: Path, photo_folder: Path
) -> None:
    overrides = ["model.name=tests.own_models.stopping_in_evaluation_net", "trainer.export=best"]
    assert forked.run(tmp_path, photo_folder, overrides) == ExitCode.STOPPED
    assert not (tmp_path / "checkpoints/best.pt").exists()
    assert_exported(tmp_path, newest_checkpoint(tmp_path))
    assert unfinished(tmp_path) == {"epoch": 0, "step": 3}


@pytest.mark.parametrize("engine", ["threads", "workers", "pillow"])
def test_batch_statistics_fit_the_averaged_weights_that_a_stop_within_an_epoch_leaves(
    engine: str, tmp_path: Path, photo_folder: Path
) -> None:
    overrides = [
        *ENDLESS,
        *SMALL,
        "optim.ema_decay=0.9",
        "trainer.batch_size=4",
        "trainer.evaluate_every_epochs=1000",
        f"pipeline={engine}",
        "pipeline.num_workers=1",
    ]
    code = forked.run_until_step(tmp_path, photo_folder, overrides, 5, signal.SIGTERM)
    assert code == ExitCode.STOPPED, (tmp_path / "log").read_text()
    found = load_file(tmp_path / "model/model.safetensors")
    saved = newest_checkpoint(tmp_path)["learner"]["ema"]
    learned = [name for name, _ in small_net(8, width=8).named_parameters()]
    assert all(torch.equal(found[name], saved[name]) for name in learned)
    config, _ = load_train_config([*TINY, f"data.root={photo_folder}", *overrides])
    source = open_source(config.data, "train", Path())
    loader = build_loader(source, loader_spec(config, Devices(CPU, None), "train"))
    network, normalize = small_net(8, width=8), Normalize(*config.data.normalization)
    network.load_state_dict(found)
    steps = statistics_steps(loader.steps_per_epoch)
    batches = islice(loader.epoch(unfinished(tmp_path)["epoch"]), steps)
    update_bn((normalize(batch.images) for batch in batches), network)  # torch's
    loader.close()
    for name, value in network.named_buffers():
        if "running" in name:
            assert not torch.equal(found[name], saved[name])  # those of an earlier epoch, or none
            torch.testing.assert_close(found[name], value)


def test_the_first_rank_exports_what_only_another_one_was_asked_for(
    tmp_path: Path, photo_folder: Path
) -> None:
    """Each host gets its own SIGTERM, at its own time."""
    first, second = forked.start_ranks(tmp_path, photo_folder, ENDLESS, 2)
    wait_until(lambda: (tmp_path / "output/data/metrics.jsonl").exists())
    assert second.pid is not None
    os.kill(second.pid, signal.SIGTERM)
    for process in (first, second):
        process.join(timeout=120)
        assert process.exitcode == ExitCode.STOPPED, (tmp_path / "log").read_text()
    assert_exported(tmp_path, newest_checkpoint(tmp_path))


def test_of_two_hosts_the_first_leaves_the_model_even_if_only_the_second_is_stopped(
    tmp_path: Path, photo_folder: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
    roots, hosts = (tmp_path / "first", tmp_path / "second"), []
    for rank, root in enumerate(roots):
        command, environment = write_job(root, photo_folder, ENDLESS)
        environment |= {**meeting, "WORLD_SIZE": "2", "RANK": str(rank)}
        log, prepare = root / "log", forked_ranks.prepare
        hosts.append(forkserver.start(command[1:], log, environment=environment, prepare=prepare))
    wait_for_steps(roots[0], hosts[0], 4)
    hosts[1].send_signal(signal.SIGTERM)
    for host, root in zip(hosts, roots, strict=True):
        assert host.wait(timeout=120) == ExitCode.STOPPED, (root / "log").read_text()
    assert_exported(roots[0], newest_checkpoint(roots[0]))
    assert not (roots[1] / "model").exists()


@pytest.mark.parametrize("ranks", [(), TWO_RANKS], ids=["one", "two"])
def test_an_export_that_takes_too_long_is_left_out_in_one_line(
    ranks: tuple[str, ...], tmp_path: Path, photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(stuck_exports.VARIABLE, str(tmp_path / "reached"))
    monkeypatch.setenv(stuck_exports.SECONDS, "1")
    output = stop(start(tmp_path, photo_folder, [STUCK, *ranks]))
    assert (tmp_path / "reached").exists()
    assert output.count("wrote no model: 1 s were not enough; the checkpoint is complete") == 1
    assert "Traceback" not in output and files(tmp_path) == []
    assert not (tmp_path / "output/failure").exists()


def test_an_export_begins_only_if_the_checkpoint_leaves_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    export_within(-1.0, tmp_path, lambda: pytest.fail("began"))
    assert "wrote no model: 0 s were not enough" in caplog.text


def test_an_export_whose_images_cannot_be_read_is_left_out(
    tmp_path: Path, photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trigger = tmp_path / "hang"
    monkeypatch.setenv(hung_reads.VARIABLE, str(trigger))
    monkeypatch.setenv(stuck_exports.SECONDS, "1")
    net = STUCK.replace(".net", ".hung_net")
    process = start(tmp_path, photo_folder, [net, "optim.ema_decay=0.9", "pipeline=threads"])
    trigger.with_suffix(".new").write_text("/train/")
    trigger.with_suffix(".new").rename(trigger)
    wait_until(trigger.with_suffix(".reached").exists)
    output = stop(process)
    assert output.count("wrote no model: ") == 1 and files(tmp_path) == []
    assert read_records(tmp_path)[-1]["step"] == max(
        int(path.stem[5:]) for path in (tmp_path / "checkpoints").glob("step-*.pt")
    )


def test_a_failed_export_is_one_line_and_the_job_is_stopped_as_ever(
    tmp_path: Path, photo_folder: Path
) -> None:
    same = "optim.lr=1e-30"  # no later epoch is better
    process = start(tmp_path, photo_folder, [same, "trainer.export=best"])
    os.truncate(tmp_path / "checkpoints/best.pt", 1000)
    output = stop(process)
    line = next(line for line in output.splitlines() if "wrote no model" in line)
    assert "best.pt is damaged" in line and "Traceback" not in output
    assert files(tmp_path) == []


def test_a_kill_during_the_export_leaves_the_earlier_model_or_none(
    tmp_path: Path, photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = tmp_path / "reached"
    overrides = [STUCK, *TWO_RANKS]
    for earlier in (False, True):
        monkeypatch.setenv(stuck_exports.VARIABLE, str(reached))
        process = start(tmp_path, photo_folder, overrides)
        process.send_signal(signal.SIGTERM)
        wait_until(reached.exists)
        process.kill()  # with which its ranks die
        process.wait()
        reached.unlink()
        visible = [name for name in files(tmp_path) if not name.startswith(".")]
        assert visible == (WHOLE if earlier else [])
        if not earlier:
            monkeypatch.delenv(stuck_exports.VARIABLE)
            stop(start(tmp_path, photo_folder, overrides))
            assert files(tmp_path) == WHOLE  # nothing is left of the killed export
            step = unfinished(tmp_path)["step"]
    assert unfinished(tmp_path)["step"] == step
    assert load_file(tmp_path / "model/model.safetensors")


def test_a_second_request_during_the_export_leaves_nothing_of_it(
    tmp_path: Path, photo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached = tmp_path / "reached"
    monkeypatch.setenv(stuck_exports.VARIABLE, str(reached))
    process = start(tmp_path, photo_folder, [STUCK, *TWO_RANKS])
    process.send_signal(signal.SIGTERM)
    wait_until(reached.exists)
    time.sleep(2 * ONE_REQUEST_S)  # the first may be handled late
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=120)
    assert process.returncode == ExitCode.FAILED
    assert files(tmp_path) == []
