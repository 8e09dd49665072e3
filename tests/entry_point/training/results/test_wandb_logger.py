"""loggers=[wandb]: the files that W&B's own client writes without a network."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.entry_point.training.results.logging_runs import log_to, losses, warnings_in
from tests.entry_point.training.training_jobs import read_records


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")


@dataclass
class Written:
    """What one process has written for W&B."""

    id: str = ""
    name: str = ""
    project: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)

    def column(self, key: str) -> list[tuple[int, float]]:
        return [(row["step"], row[key]) for row in self.rows if key in row]


def written(root: Path) -> list[Written]:
    """Each process's, in order."""
    files = (root / "output" / "data" / "wandb").glob("offline-run-*/*.wandb")
    # Their names tell the order of starts only to the second.
    return [_read(file) for file in sorted(files, key=lambda file: file.stat().st_mtime_ns)]


def _read(file: Path) -> Written:
    from wandb.proto.wandb_internal_pb2 import Record
    from wandb.sdk.internal.datastore import DataStore

    found, store = Written(), DataStore()
    store.open_for_scan(str(file))
    while (message := store.scan_data()) is not None:
        record = Record.FromString(message)
        if record.HasField("run"):
            run = record.run
            found.id, found.name, found.project = run.run_id, run.display_name, run.project
            found.config = {each.key: json.loads(each.value_json) for each in run.config.update}
        elif record.HasField("history"):
            items = record.history.item
            row = {(each.key or each.nested_key[0]): json.loads(each.value_json) for each in items}
            found.rows.append(row)
    return found


@pytest.mark.parametrize("kwargs", [{"project": "photos"}, {"id": "ours", "resume": "allow"}])
def test_a_later_start_is_a_run_of_its_own_or_continues_the_named_one(
    kwargs: dict[str, str], tmp_path: Path
) -> None:
    for new, resumed_at in ((losses(5, 4), 0), (losses(3, first=3), 2)):
        log_to(tmp_path, ["wandb"], new, resumed_at, **kwargs)
    first, second = written(tmp_path)
    assert [first.column("loss"), second.column("loss")] == [[(1, 5.0), (2, 4.0)], [(3, 3.0)]]
    assert second.config["optim"]["name"] == "sgd"
    if "id" in kwargs:
        assert first.id == second.id == "ours"
    else:
        assert first.id != second.id and (second.name, second.project) == ("a-run", "photos")


def test_without_an_account_the_log_says_so_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    log_to(tmp_path, ["wandb"], losses(5, 4))
    (line,) = warnings_in(caplog)
    assert line.startswith("logger wandb failed and is off; the job continues: ")
    assert len(read_records(tmp_path)) == 2
