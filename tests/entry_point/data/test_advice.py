"""What an error about a dataset advises leads on: each case meets the error, and follows it."""

import json
import logging
import re
import shlex
import shutil
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from entry_point.config.train_config import load_train_config
from entry_point.data.engines import batch_maker
from entry_point.data.loader import build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.sources import listed_paths
from entry_point.job.program import ExitCode, UserError
from entry_point.training.augmentation import BatchAugmentation
from entry_point.training.tasks.build_task import build_task
from tests import commands
from tests.entry_point.data.packing.pack_command import pack
from tests.entry_point.data.sources.small_datasets import jpeg, members, table, write, write_tar

Overrides = list[str]
MAKE = re.compile(r'`make ([a-z-]+) ARGS="([^`]*)"`')
PROGRAMS = {"dataset": commands.optimize, "check-dataset": commands.check_dataset}


def train(*overrides: str, ranks: int = 1) -> None:
    """Open both splits, build the task, and make each rank's batches of an epoch."""
    size = ("data.image_size=32", "data.resize=32", "pipeline=pillow", "pipeline.num_workers=0")
    config, _ = load_train_config([*size, "trainer.batch_size=4", *overrides])
    for split in ("train", "val"):
        source = open_source(config.data, split, Path())
        if split == "train":
            BatchAugmentation(config, build_task(config, source, torch.device("cpu")))
        for rank in range(ranks):
            batch = config.trainer.batch_size
            spec = LoaderSpec(config.data, config.pipeline, split, batch, 0, rank, ranks)
            loader = build_loader(source, spec)
            for _ in loader.epoch(0):
                pass
            loader.close()


def line_of(*overrides: str) -> str:
    """What training says."""
    with pytest.raises(UserError) as caught:
        train(*overrides)
    line = str(caught.value)
    assert "\n" not in line
    return line


def run_advised(line: str) -> int:
    """Run the command that the line prints, as a shell would."""
    found = MAKE.search(line)
    assert found, line
    return PROGRAMS[found[1]](shlex.split(found[2]))


def numbered(*folders: str, count: int = 8) -> list[str]:
    return [f"{folder}/{number}.jpg" for folder in folders for number in range(count)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with photographs a/0.jpg to b/7.jpg."""
    return write(tmp_path / "photos", *numbered("a", "b"))


# Tables: the header, a row of each photograph, what is given, the advice, and what is typed.
TABLES = [
    (
        "path,label",
        "s3://bucket/photos-{p},{c}",  # no folder, which would be found
        [],
        "set data.table.prefix to the part of it",
        ["data.table.prefix=s3://bucket/photos-"],
    ),
    (
        "path,label",
        "{p},0.{n}x",
        ["data.table.kind=numbers"],
        "set data.table.kind=class",
        ["data.table.kind=class"],
    ),
    (
        "path,one,two",
        "{p},{n},2",
        ["data.table.labels=[one,two]", "task=multilabel"],
        "set data.table.kind=numbers",
        ["data.table.labels=[one,two]", "task=regression", "data.table.kind=numbers"],
    ),
    ("path,label,split", "{p},{c},train", [], "data.val_fraction=0.1", []),
]


@pytest.mark.parametrize(("header", "row", "given", "advice", "then"), TABLES)
def test_advised_setting_of_a_table_opens_it(
    root: Path, header: str, row: str, given: Overrides, advice: str, then: Overrides
) -> None:
    names = numbered("a", "b")
    rows = [row.format(p=name, c=name[0], n=number % 2) for number, name in enumerate(names)]
    data = ["data=manifest", f"data.root={table(root / 'rows.csv', rows, header)}"]
    assert advice in line_of(*data, *given)
    train(*data, *then, "data.val_fraction=0.5")


def test_a_row_outside_is_read_below_the_advised_folder(root: Path, tmp_path: Path) -> None:
    rows = [f"../photos/{name},{name[0]}" for name in numbered("a", "b")]
    file = table(tmp_path / "lists/rows.csv", rows)
    data = ["data=manifest", f"data.root={file}", "data.val_fraction=0.5"]
    assert "set data.images to a folder that holds all images" in line_of(*data)
    table(file, [row.removeprefix("../photos/") for row in rows])
    train(*data, f"data.images={root}")


def test_lists_of_labels_are_read_with_the_advised_kind(root: Path) -> None:
    file = root / "rows.jsonl"
    rows = [{"path": name, "label": ["a", name[0]]} for name in numbered("a", "b")]
    file.write_text("\n".join(map(json.dumps, rows)))
    data = ["data=manifest", f"data.root={file}", "data.table.kind=class", "data.val_fraction=0.5"]
    assert "set data.table.kind=labels" in line_of(*data)
    assert "use task=multilabel" in line_of(*data, "data.table.kind=labels")
    train(*data, "data.table.kind=labels", "task=multilabel")


@pytest.mark.parametrize(("missing", "of_val"), [(1, 0), (0, 1), (9, 2)])
def test_advised_share_is_enough_for_missing_files(
    tmp_path: Path, missing: int, of_val: int
) -> None:
    root = write(tmp_path, *numbered("a", "b", count=50))
    train_names, val_names = numbered("a", "b", count=40), numbered("a", count=50)[40:]
    rows = [f"x:/none-{n}.jpg,a,train" for n in range(missing)]
    rows += [f"x:/{name},{name[0]},train" for name in train_names[missing:]]
    rows += [f"x:/nowhere-{n}.jpg,b,val" for n in range(of_val)]
    rows += [f"x:/{name},a,val" for name in val_names[of_val:]]
    file = table(root / "rows.csv", rows, "path,label,split")
    # 64 of 80 images are whole batches.
    data = ["data=manifest", f"data.root={file}", "data.table.prefix=x:/", "trainer.batch_size=64"]
    line = line_of(*data)
    train(*data, share_in(line))
    assert run_advised(line) == ExitCode.FAILED


def share_in(line: str) -> str:
    """The advised setting that goes on without damaged images."""
    advice = re.search(r"data\.max_bad_fraction=[0-9.]+\d", line)
    assert advice, line
    return advice[0]


def test_a_long_run_of_missing_files_is_no_share_to_skip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(tmp_path, *numbered("a", "b", count=40))
    rows = [f"{name},{name[0]},train" for name in numbered("a", "b", count=40)]
    rows[36:46] = [f"none-{number}.jpg,a,train" for number in range(10)]
    rows += [f"{name},a,val" for name in numbered("a", count=40)[36:]]
    file = table(root / "rows.csv", rows, "path,label,split")
    data = ["data=manifest", f"data.root={file}"]
    for longest in (9, 10):
        for module in (listed_paths, batch_maker):
            monkeypatch.setattr(module, "LONGEST_RUN", longest)
        line = line_of(*data)
        assert ("max_bad_fraction" in line) is (longest == 10)
    train(*data, share_in(line))


def test_files_that_are_mostly_missing_are_no_share_to_skip(root: Path) -> None:
    rows = [f"elsewhere/{name},{name[0]}" for name in numbered("a", "b")]
    file = table(root / "rows.csv", rows)
    data = ["data=manifest", f"data.root={file}", "data.val_fraction=0.5"]
    line = line_of(*data)
    assert "16 of 16 files are missing" in line and "max_bad_fraction" not in line
    assert "correct the table, data.table.path, data.images or data.table.prefix" in line
    (root / "elsewhere").symlink_to(root)
    train(*data)


@pytest.mark.parametrize(("split", "ranks"), [("train", 4), ("val", 1), ("val", 4)])
def test_advised_share_is_enough_for_a_damaged_image(
    tmp_path: Path, split: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write(tmp_path / "my photos", *numbered("train/a", "train/b", "val/a", "val/b"))
    (root / split / "b/3.jpg").write_bytes(b"damaged")
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    data = ["data=folder", f"data.root={root}"]
    line = line_of(*data)
    train(*data, share_in(line), "trainer.batch_size=3", ranks=ranks)
    assert run_advised(line) == ExitCode.FAILED


def test_images_that_are_all_damaged_are_counted(tmp_path: Path) -> None:
    root = write(tmp_path, *numbered("train/a", count=3), "train/b/0.jpg", "val/a/0.jpg")
    for file in root.glob("train/*/*.jpg"):
        file.write_bytes(b"damaged")
    line = line_of("data=folder", f"data.root={root}", "data.max_bad_fraction=1")
    assert "and the 3 images before it are damaged" in line


def test_damage_of_an_own_source_names_no_program_that_cannot_read_it(tmp_path: Path) -> None:
    root = write(tmp_path, *numbered("train/a", "train/b", "val/a", "val/b"))
    (root / "train/b/3.jpg").write_bytes(b"damaged")
    own = "tests.own_sources.Brightness"
    assert "check-dataset" not in line_of(
        f"data.format={own}", f"data.root={root}", "task=segmentation", "data.crop=squash"
    )


# Folders: what is there, what is given, the advice, and what is typed.
TRAIN_ONLY = numbered("train/a", "train/b")
BOTH = [*TRAIN_ONLY, *numbered("val/a", "val/b", count=2)]
FOLDERS = [
    (TRAIN_ONLY, [], "data.val_fraction=0.1", ["data.val_fraction=0.5"]),
    (BOTH, ["data.val_fraction=0.5"], "remove one of them", []),
    (BOTH, ["trainer.batch_size=64"], "must be at most 16,", ["trainer.batch_size=16"]),
    (BOTH, ["task=regression"], "use task=classification", ["task=classification"]),
    (BOTH, ["data=demo"], "read your own with data=folder", ["data=folder"]),
    (BOTH, ["data=webdataset"], "holds no tar file", ["data=folder"]),
]


@pytest.mark.parametrize(("files", "given", "advice", "then"), FOLDERS)
def test_advice_for_a_folder_opens_it(
    tmp_path: Path, files: list[str], given: Overrides, advice: str, then: Overrides
) -> None:
    data = ["data=folder", f"data.root={write(tmp_path, *files)}"]
    assert advice in line_of(*data, *given)
    train(*data, *then)


def test_advice_to_move_folders_opens_them(tmp_path: Path) -> None:
    root = write(tmp_path, *numbered("train", count=3))
    data = ("data=folder", f"data.root={root}")
    assert "put images into" in line_of(*data)
    write(root, *BOTH, *numbered("valid/a", "valid/b"))
    assert "remove or rename one" in line_of(*data)
    (root / "valid").rename(root / "other")
    train(*data)


def test_a_packed_dataset_is_read_as_advised(tmp_path: Path) -> None:
    root, packed = write(tmp_path / "photos", *BOTH), tmp_path / "packed"
    assert pack(root, packed) == 0
    assert "read it with data=shards" in line_of("data=folder", f"data.root={packed}")
    train("data=shards", f"data.root={packed}")


def test_a_missing_part_is_packed_as_advised(tmp_path: Path) -> None:
    root, packed = write(tmp_path / "photos", *BOTH), tmp_path / "packed"
    options = ("shard_mb=0.001",)
    assert pack(root, packed, *options, "part=1/2") == 0
    line = line_of("data=shards", f"data.root={packed}")
    advice = re.search(r"part=\d/\d", line)
    assert advice and advice[0] == "part=2/2"
    assert pack(root, packed, *options, advice[0]) == 0
    train("data=shards", f"data.root={packed}", "trainer.batch_size=1")


def test_masks_are_read_as_advised(tmp_path: Path) -> None:
    def write_masks(of_road: int) -> None:
        for split, number in product(("train", "val"), range(8)):
            mask = tmp_path / f"{split}/masks/{number}.png"
            mask.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((8, 8), of_road * (number % 2), np.uint8)).save(mask)

    write(tmp_path, *numbered("train/images", "val/images"))
    write_masks(255)
    (tmp_path / "classes.txt").write_text("ground\nroad\n")
    line = line_of("data=folder", f"data.root={tmp_path}")
    assert "train on them with data=masks task=segmentation" in line
    advised = ("data=masks", "task=segmentation", f"data.root={tmp_path}")
    assert "store the second class of classes.txt as 1" in line_of(*advised)
    write_masks(1)
    train(*advised)
    for given, advice, then in (
        ("augment.name=trivial", "such as color_jitter", "augment.name=color_jitter"),
        ("data.crop=center", "set squash", "data.crop=squash"),
        ("task.class_weights=auto", "list a number per class", "task.class_weights=[1,2]"),
    ):
        assert advice in line_of(*advised, given)
        train(*advised, then)


def test_a_packed_dataset_without_val_is_packed_again_or_named_whole_as_advised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root, packed = tmp_path / "tars", tmp_path / "packed"
    write_tar(root / "train-0.tar", *members(["a", "b"] * 8))
    with caplog.at_level(logging.WARNING):
        assert pack(root, packed) == 0
    tenth = "val_fraction=0.1, which takes a tenth of train"
    assert f"has no images for val, which training needs: add data.{tenth}" in caplog.text
    assert line_of(f"data.root={packed}").endswith(f"pack its images again with {tenth}")
    shutil.rmtree(packed)
    assert pack(root, packed, "val_fraction=0.1") == 0
    *_, advised = line_of(f"data.root={packed / 'train'}").split()
    train(advised)


def _write_parquet(file: Path, **columns: list[str]) -> Path:
    images = [{"bytes": jpeg(), "path": None}] * 16
    names = [name[0] for name in numbered("a", "b")]
    rows = {name: images if kind == ["image"] else names for name, kind in columns.items()}
    pq.write_table(pa.table(rows), file)
    return file


def test_columns_of_parquet_are_named_as_advised(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = _write_parquet(tmp_path / "rows.parquet", image=["image"], animal=["text"])
    data = ["data=parquet", f"data.root={file}", "data.val_fraction=0.5"]
    assert "set data.table.labels=[COLUMN]" in line_of(*data)
    train(*data, "data.table.labels=animal")
    assert pack(file, tmp_path / "packed", "val_fraction=0.5") == ExitCode.USAGE
    assert "set data.table.labels=[COLUMN]" in capfd.readouterr().err
    assert pack(file, tmp_path / "packed", "val_fraction=0.5", "data.table.labels=animal") == 0
    several = _write_parquet(
        tmp_path / "several.parquet", left=["image"], right=["image"], label=["text"]
    )
    data[1] = f"data.root={several}"
    assert "set data.table.path=COLUMN" in line_of(*data)
    train(*data, "data.table.path=left")
    assert commands.check_dataset([f"root={several}"]) == ExitCode.USAGE
    assert "set data.table.path=COLUMN" in capfd.readouterr().err
    assert commands.check_dataset([f"root={several}", "data.table.path=left"]) == 0


def test_images_in_a_table_are_read_as_advised(tmp_path: Path) -> None:
    file = _write_parquet(tmp_path / "rows.parquet", image=["image"], label=["text"])
    data = [f"data.root={file}", "data.val_fraction=0.5"]
    assert "read it with data=parquet" in line_of("data=manifest", *data)
    train("data=parquet", *data)


def test_one_of_several_tables_is_named_as_advised(root: Path) -> None:
    for name in ("one.csv", "two.csv"):
        table(root / name, [f"{name},{name[0]}" for name in numbered("a", "b")])
    data = ["data=manifest", "data.val_fraction=0.5"]
    advice = re.search(r"data\.root=\S+/FILE", line_of(*data, f"data.root={root}"))
    assert advice
    train(*data, advice[0].replace("FILE", "one.csv"))


def test_missing_side_indexes_are_made_as_advised(tmp_path: Path) -> None:
    root = write(tmp_path / "my photos", *BOTH)
    rows = [f"{name},{name.split('/')[1]},{name.split('/')[0]}" for name in BOTH]
    file = table(tmp_path / "rows.csv", rows, "path,animal,split")
    data = ["data=manifest", f"data.root={file}", f"data.images={root}"]
    data += ["data.table.labels=animal", f"data.index_root={tmp_path / 'indexes'}"]
    line = line_of(*data)
    assert "holds no jpeg-index.sqlite; make it with" in line
    assert run_advised(line) == 0
    train(*data)
