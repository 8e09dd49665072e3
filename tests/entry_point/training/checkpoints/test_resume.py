"""Which checkpoints a job may resume from: those of the same job."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from entry_point.config.config_errors import ConfigError
from entry_point.config.train_config import TrainConfig, load_train_config
from entry_point.data.errors import DataError
from entry_point.data.loader import open_source
from entry_point.job.devices import Devices
from entry_point.training.checkpoints import save_tensors
from entry_point.training.resume import (
    FREE,
    is_free,
    job_settings,
    load_to_resume,
    refuse_other_job,
    refuse_untrained,
    saved_identity,
    typed_settings,
)

SETTINGS = typed_settings(TrainConfig())
FOUND = ("data.mean", "data.std")
"""Null is what the run finds."""
COMPARED = sorted(key for key in SETTINGS if not is_free(key))


def of_job(*overrides: str, data: str = "data=folder", ranks: int = 1) -> dict[str, Any]:
    """What a checkpoint says about the job."""
    config, _ = load_train_config([data, *overrides])
    source = open_source(config.data, "train", Path())
    devices = Devices(torch.device("cpu"), None, world_size=ranks)
    return job_settings(config, source, source, 3, devices)


def at(
    job: dict[str, Any], step: int = 0, identity: Mapping[str, object] | None = None
) -> dict[str, Any]:
    """A checkpoint of the job, with other values in its identity."""
    progress = {"epoch": 1, "step": step}
    return {**job, "identity": {**job["identity"], **(identity or {})}, "progress": progress}


@pytest.fixture(scope="module")
def job(photo_folder: Path) -> dict[str, Any]:
    return of_job(f"data.root={photo_folder}")


@pytest.mark.parametrize("key", COMPARED)
def test_every_setting_that_is_not_free_is_compared(key: str, job: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"{key}=.*: the checkpoint was made with {key}=other"):
        refuse_other_job(at(job, identity={key: "other"}), job)


def test_free_settings_may_differ(job: dict[str, Any]) -> None:
    others = {key: "other" for key in SETTINGS if key not in COMPARED}
    refuse_other_job(at(job, identity=others), job)
    assert others and "optim.lr" not in others and SETTINGS.keys() >= FREE


def test_own_arguments_are_compared_in_one_setting_that_can_be_typed(photo_folder: Path) -> None:
    where, narrow = f"data.root={photo_folder}", "model.kwargs.width=8"
    saved, now = of_job(where, narrow), of_job(where, "model.kwargs.width=16")
    with pytest.raises(ConfigError, match=r"s=\{width:16\}: .* with model.kwargs=\{width:8\}; re"):
        refuse_other_job(at(saved), now)
    with pytest.raises(ConfigError, match=r"kwargs=\{\}: .* with model.kwargs=\{width:8\}; rest"):
        refuse_other_job(at(saved), of_job(where))


def test_a_setting_that_the_checkpoints_version_lacked_has_its_default(photo_folder: Path) -> None:
    where = f"data.root={photo_folder}"
    now = of_job(where)
    saved = at(now)
    for key in ("data.views", "optim.accumulate"):
        del saved["identity"][key]
    refuse_other_job(saved, now)
    with pytest.raises(ConfigError, match=r"data.views=2: the checkpoint .* data.views=1; restor"):
        refuse_other_job(saved, of_job(where, "data.views=2"))


def test_another_number_of_ranks_is_refused_only_for_a_stream(packed_photos: Path) -> None:
    where, stream = f"data.root={packed_photos}", "data.access=stream"
    mapped = [of_job(where, data="data=shards", ranks=ranks) for ranks in (2, 3)]
    refuse_other_job(at(mapped[0], step=1), mapped[1])
    streams = [of_job(where, stream, data="data=shards", ranks=ranks) for ranks in (2, 3)]
    refuse_other_job(at(streams[0]), streams[1])
    for other in (streams[1], mapped[0]):  # its results may be written again on another machine
        refuse_untrained(at(streams[0]), other)
    with pytest.raises(ConfigError, match=r"ranks=3: the checkpoint was made with ranks=2"):
        refuse_other_job(at(streams[0], step=1), streams[1])
    with pytest.raises(
        ConfigError, match=r"data\.access=map: the checkpoint was made with data\.access=stream"
    ):
        refuse_other_job(at(streams[0], step=1), mapped[0])


def test_another_number_of_ranks_is_refused_between_epochs_if_the_steps_change_with_it(
    packed_photos: Path,
) -> None:
    where = (f"data.root={packed_photos}", "data.access=stream")
    saved, now = (of_job(*where, data="data=shards", ranks=ranks) for ranks in (1, 2))
    now["identity"]["steps per epoch"] = 2
    with pytest.raises(ConfigError, match=r"ranks=2: the checkpoint was made with ranks=1"):
        refuse_other_job(at(saved), now)


def test_what_is_restored_of_the_order_can_be_typed(photo_folder: Path) -> None:
    """A checkpoint of 2.0.0's first versions leaves out what is usual."""
    where = f"data.root={photo_folder}"
    saved, now = at(of_job(where), step=1), of_job(where, "data.repeats=2")
    for order in (saved["order"], {"data.access": "map"}):
        with pytest.raises(ConfigError, match=r"repeats=2: .* with data.repeats=1; restore that"):
            refuse_other_job({**saved, "order": order}, now)
        refuse_other_job({**saved, "order": order}, of_job(where))


@pytest.mark.parametrize("change", ["data.balance=classes", "data.repeats=2", "model.weights=a.pt"])
def test_a_complete_run_refuses_what_only_training_heeds(change: str, photo_folder: Path) -> None:
    where, (key, _, value) = f"data.root={photo_folder}", change.partition("=")
    saved, now = at(of_job(where)), of_job(where, change)
    refuse_other_job(saved, now)
    refuse_untrained(saved, of_job(where, "data.access=map"))  # what auto is for folders
    with pytest.raises(ConfigError, match=f"{key}={value}: the checkpoint was made with {key}="):
        refuse_untrained(saved, now)
    del saved["identity"]["model.weights"]  # version 1 kept less
    refuse_untrained(saved, of_job(where, "model.weights=a.pt"))


def test_weights_that_a_resumed_run_does_not_read_are_named(
    photo_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    where, devices = f"data.root={photo_folder}", Devices(torch.device("cpu"), None)
    saved = {**at(of_job(where)), "learner": {}, "log": {}}
    save_tensors(saved, tmp_path / "step-000000003.pt")
    load_to_resume(tmp_path, of_job(where), devices)
    assert "has no effect" not in caplog.text
    load_to_resume(tmp_path, of_job(where, "model.weights=pretrained"), devices)
    assert "model.weights=pretrained has no effect: the run began with null" in caplog.text


def test_other_images_are_refused_within_an_epoch(job: dict[str, Any]) -> None:
    saved = at(job, step=1)
    saved["images"] = {**job["images"], "training": "48 (#00000000)"}
    with pytest.raises(DataError, match="within epoch 2: the training images have other names"):
        refuse_other_job(saved, job)
    refuse_other_job({**saved, "progress": {"epoch": 1, "step": 0}}, job)


def test_other_validation_images_are_named_within_an_epoch(
    job: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved = {**at(job, step=1), "learner": {}, "log": {}}
    saved["images"] = {**job["images"], "validation": "24 (#00000000)"}
    save_tensors(saved, tmp_path / "step-000000004.pt")
    assert load_to_resume(tmp_path, job, Devices(torch.device("cpu"), None)) == saved
    assert "the validation images have other names or labels; the run continues" in caplog.text


def test_a_dataset_that_has_lost_an_image_is_what_to_restore(job: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="training images=37; restore the dataset, or use"):
        refuse_other_job(at(job, identity={"training images": 37}), job)


def test_settings_that_name_other_images_are_what_to_restore(job: dict[str, Any]) -> None:
    """Nobody can type a number of images."""
    saved = at(job, identity={"training images": 37, "data.val_fraction": 0.3})
    with pytest.raises(ConfigError, match=r"images=37; restore data\.val_fraction=0\.3, or use"):
        refuse_other_job(saved, job)


def test_columns_of_other_images_are_restored_one_by_one_as_typed(job: dict[str, Any]) -> None:
    """What else has changed, such as `data.access`, need not be restored."""
    root, table = "/photos/a.csv", {**job["identity"]["data.table"], "separator": ";"}
    changed = {"data.root": root, "data.table": {**table, "labels": ["age"]}, "data.access": "map"}
    identity = {"training images": 37, **changed}
    with pytest.raises(ConfigError) as caught:
        refuse_other_job(at(job, identity=identity), job)
    typed = f"restore data.root={root} data.table.labels=[age] data.table.separator=';'"
    assert typed in str(caught.value) and "data.access" not in str(caught.value)


def test_a_damaged_newest_checkpoint_does_not_hide_the_rule_of_the_split(tmp_path: Path) -> None:
    save_tensors({"identity": {"data.val_top_up": None}}, tmp_path / "step-000000001.pt")
    (tmp_path / "step-000000002.pt").write_bytes(b"PK")
    assert saved_identity(tmp_path) == {"data.val_top_up": None}
