"""A rank that stops answering is named within a minute, here within seconds."""

import logging
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import FileStore  # type: ignore[attr-defined]

from entry_point.job import ranks
from entry_point.job.run_folder import RunFolder
from tests.entry_point.training import forked
from tests.own_models import tiny_net


class Hanging(nn.Module):
    """Hangs in its third step, on one rank, until the file `go` is in the run folder."""

    def __init__(self, num_classes: int, hangs: int, frozen: bool = False) -> None:
        super().__init__()
        self.net, self.calls, self.hangs, self.frozen = tiny_net(num_classes), 0, hangs, frozen

    def forward(self, images: Tensor) -> Tensor:
        self.calls += self.training
        if self.calls == 3 and self.training and torch.distributed.get_rank() == self.hangs:
            root = RunFolder.from_environment().root
            (root / "pid").write_text(str(os.getpid()))
            if self.frozen:
                os.kill(os.getpid(), signal.SIGSTOP)
            while not (root / "go").exists():
                time.sleep(0.02)
        logits: Tensor = self.net(images)
        return logits


def hurry() -> None:
    ranks.ANSWER_PATIENCE_S, ranks.PUBLISH_S = 1.0, 0.1


@pytest.mark.parametrize(("hangs", "frozen"), [(0, False), (1, False), (1, True)])
def test_the_rank_that_the_others_wait_for_is_named_and_the_run_continues(
    hangs: int, frozen: bool, tmp_path: Path, photo_folder: Path
) -> None:
    job = [f"model.name={__name__}.Hanging", f"model.kwargs.hangs={hangs}"]
    job += [f"model.kwargs.frozen={str(frozen).lower()}", "trainer.epochs=1"]
    started = forked.start_ranks(tmp_path, photo_folder, job, 2, prepare=hurry)
    log, pid = tmp_path / "log", tmp_path / "pid"
    while not (log.exists() and "has not answered" in log.read_text()):
        assert all(rank.is_alive() for rank in started), log.read_text()
        time.sleep(0.05)
    (tmp_path / "go").touch()
    os.kill(int(pid.read_text()), signal.SIGCONT)
    for rank in started:
        rank.join(timeout=120)
    assert [rank.exitcode for rank in started] == [0, 0], log.read_text()
    (line,) = [each for each in log.read_text().splitlines() if "has not answered" in each]
    assert line.startswith(f"rank {hangs} (process {pid.read_text()} on ")


def test_ranks_that_all_wait_alike_are_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As while all compile, or while the first writes what the others need no exchange for."""
    monkeypatch.setattr(ranks, "ANSWER_PATIENCE_S", 0.1)
    monkeypatch.setattr(ranks, "PUBLISH_S", 0.01)
    store = FileStore(str(tmp_path / "store"), 2)
    watches = [ranks.RankWatch(store, rank, 2) for rank in range(2)]
    try:
        for _ in range(3):
            for watch in watches:
                watch.arrive()
            time.sleep(0.3)
        with caplog.at_level(logging.WARNING):
            assert caplog.messages == []
    finally:
        for watch in watches:
            watch.close()
