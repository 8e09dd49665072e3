"""A room that is optional can be taken out: what is left still imports, and trains."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import forkserver

ROOT = Path(__file__).resolve().parent.parent
COPIED = ("custom_op", "entry_point", "project", "configs")
# Room -> its files.
ROOMS: dict[str, tuple[str, ...]] = {
    "tables": (
        "entry_point/data/sources/table.py",
        "entry_point/data/sources/table_files.py",
        "configs/data/manifest.yaml",
    ),
    "webdataset": (
        "entry_point/data/sources/webdataset.py",
        "configs/data/webdataset.yaml",
    ),
    "parquet": ("entry_point/data/sources/parquet.py", "configs/data/parquet.yaml"),
    "dali": ("entry_point/data/decode/dali.py", "configs/pipeline/dali.yaml"),
    "workers": (
        "entry_point/data/engines/workers.py",
        "configs/pipeline/workers.yaml",
        "configs/pipeline/pillow.yaml",
    ),
    "serving": (
        "entry_point/serving",
        "entry_point/serve.py",
        "entry_point/config/serve_config.py",
        "configs/serve.yaml",
    ),
    "loggers": tuple(
        f"entry_point/training/results/{name}_logger.py"
        for name in ("tensorboard", "mlflow", "wandb")
    ),
}
# A package that is not installed is no fault of the copy: DALI is an extra.
IMPORT_ALL = """
import importlib, os, pkgutil, custom_op, entry_point
assert entry_point.__path__[0].startswith(os.getcwd())
custom_op.load()
for package in (custom_op, entry_point):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            if error.name.partition(".")[0] in ("custom_op", "entry_point"):
                raise
"""
TRAIN = (
    *("data=demo", "+data.kwargs.train_images=20", "+data.kwargs.val_images=10"),
    *("data.image_size=32", "data.resize=32", "trainer.device=cpu", "trainer.epochs=1"),
    *("trainer.batch_size=10", "optim.warmup_epochs=0", "loggers=[]"),
    "model.name=project.models.small_net",
)


def copy_without(room: Sequence[str], copy: Path, more: Sequence[str] = ()) -> Path:
    for name in (*COPIED, *more):
        unfinished = shutil.ignore_patterns("*.pyc.*")  # of processes that import now
        shutil.copytree(ROOT / name, copy / name, ignore=unfinished)
    for name in room:
        path = copy / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return copy


def run(copy: Path, arguments: Sequence[str], **environment: str) -> str:
    """What a Python program in the copy prints."""
    environment["PYTHONPATH"] = str(copy)
    log = copy.parent / "log"
    log.unlink(missing_ok=True)
    process = forkserver.start(arguments, log, environment=environment, tree=copy)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return output


@pytest.mark.parametrize("room", ROOMS)
def test_without_a_room_the_rest_imports(room: str, tmp_path: Path) -> None:
    run(copy_without(ROOMS[room], tmp_path / "copy"), ["-c", IMPORT_ALL])


def test_without_any_of_them_the_demo_trains_and_its_images_pack_and_predict(
    tmp_path: Path,
) -> None:
    left = copy_without([file for room in ROOMS.values() for file in room], tmp_path / "copy")
    demo, model = tmp_path / "demo", tmp_path / "run" / "model"
    train = ["-m", "entry_point.train", *TRAIN]
    run(left, train, ML_ROOT=str(model.parent), DEMO_DATA=str(demo))
    run(left, ["-m", "entry_point", "optimize", f"source={demo}", f"output={tmp_path / 'packed'}"])
    run(left, ["-m", "entry_point", "check-dataset", f"root={tmp_path / 'packed'}"])
    where = [f"model_dir={model}", f"input={demo / 'val'}", f"output_dir={tmp_path / 'answers'}"]
    assert "10 images predicted" in run(left, ["-m", "entry_point", "predict", *where])
