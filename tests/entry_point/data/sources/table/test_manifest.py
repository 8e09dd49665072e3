"""data=manifest on real photographs: every format and kind of labels, and how it splits."""

import logging
import pickle
from pathlib import Path

import pytest
import torch

from entry_point.config.data_config import DataConfig, TableConfig
from entry_point.config.train_config import load_train_config
from entry_point.data.errors import DataError
from entry_point.data.loader import open_source
from tests.entry_point.data.loaders import epoch_of, loader_of
from tests.entry_point.data.sources import small_datasets
from tests.entry_point.data.sources.small_datasets import keys
from tests.entry_point.data.sources.table.labeled_tables import opened, rows_of, write

TEXT_FORMATS = (".csv", ".tsv", ".jsonl", ".json", ".ndjson", ".manifest")
FORMATS = (*TEXT_FORMATS, ".parquet")


ANY_TEXT = {"astronaut": "Käse, alt", "cat": 'the "best"', "rocket": "日本"}
TAGS, AGES = [["a", "b"], [], ["c"]], [0.5, 2.0, -1e3]


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_gives_the_images_and_labels_of_its_rows(
    photo_folder: Path, tmp_path: Path, suffix: str
) -> None:
    rows = rows_of(photo_folder)
    for i, row in enumerate(rows):
        row["label"] = ANY_TEXT.get(row["label"], row["label"])
        row |= {"tags": TAGS[i % 3], "age": AGES[i % 3]}
    file = write(tmp_path / f"labels{suffix}", rows)
    for split, source in zip(("train", "val"), opened(file, images=str(photo_folder)), strict=True):
        here = [row for row in rows if row["split"] == split]
        assert source.kind == "class" and source.classes == sorted({row["label"] for row in rows})
        assert keys(source) == [f"{photo_folder}/{row['path']}" for row in here]
        assert [source.classes[n] for n in source.labels.tolist()] == [r["label"] for r in here]
        assert source.read(5).numpy().tobytes() == Path(source.key(5)).read_bytes()
    for column, kind, classes, labels in (
        ("tags", "labels", ["a", "b", "c"], [[1, 1, 0], [0, 0, 0], [0, 0, 1]]),
        ("age", None, ["age"], [[age] for age in AGES]),
    ):
        table = TableConfig(labels=[column], kind=kind)  # type: ignore[arg-type]
        source, _ = opened(file, images=str(photo_folder), table=table)
        assert (source.kind, source.classes) == (kind or "numbers", classes)
        assert source.labels.dtype == torch.float32 and source.labels[:3].tolist() == labels


def test_a_multilabel_manifest_of_ground_truth_names_its_labels(tmp_path: Path) -> None:
    names = small_datasets.NAMES
    rows = [
        {
            "source-ref": name,
            "things": [0, 2] if i % 2 else [2],
            "things-metadata": {"class-map": {"0": "cat", "2": "dog"} if i % 2 else {"2": "dog"}},
        }
        for i, name in enumerate(names)
    ]
    file = write(small_datasets.write(tmp_path, *names) / "output.manifest", rows)
    train, _ = opened(file, val_fraction=0.3)
    assert train.kind == "labels" and train.classes == ["cat", "dog"]
    assert train.labels[:, 1].all() and 0 < train.labels[:, 0].sum() < len(train)


def test_paths_are_below_the_images_or_absolute_or_behind_a_prefix(
    photo_folder: Path, tmp_path: Path
) -> None:
    rows = rows_of(photo_folder)
    ways = ("{path}", "./{path}", f"{photo_folder}/{{path}}", "train/../{path}", "x:/y/{path}")
    changed = [
        {**row, "path": ways[i % len(ways)].format(path=row["path"])} for i, row in enumerate(rows)
    ]
    file = write(tmp_path / "ways.csv", changed)
    table = TableConfig(prefix="x:/y/")
    train, val = opened(file, images=str(photo_folder), table=table)
    found = [*keys(train), *keys(val)]
    assert found == [f"{photo_folder}/{row['path']}" for row in rows]


def test_every_row_is_accounted_for(
    photo_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = rows_of(photo_folder)
    unlabeled = {"path": "unseen.jpg", "label": "", "split": "extra"}
    more = [{**rows[0], **unlabeled}, {**rows[3], "split": ""}]
    file = write(tmp_path / "labels.csv", rows + more)
    with caplog.at_level(logging.INFO):
        train, val = opened(file, images=str(photo_folder))
    assert caplog.messages[0] == (
        f"{file}: a table: 48 images for train, 24 for val (by the column 'split'); not used: 1 of "
        "split 'extra', 1 of no split; 8 classes"
    )
    assert (len(train), len(val)) == (48, 24) and val.place(0) == "row 49: "


def test_words_that_are_no_splits_are_named_with_what_to_call_them(tmp_path: Path) -> None:
    rows = [{"path": f"{i}.jpg", "label": "cat", "fold": str(i % 2)} for i in range(4)]
    file = write(tmp_path / "labels.csv", rows)
    with pytest.raises(DataError, match="2 of split '1': call them train, val or test, or name an"):
        opened(file, table=TableConfig(split="fold"))


def test_a_missing_file_stops_the_job_unless_damage_is_skipped(
    photo_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = rows_of(photo_folder)
    rows[2]["path"], rows[50]["path"] = "train/cat/gone.jpg", "nowhere/gone.jpg"
    file = write(tmp_path / "labels.csv", rows)
    with pytest.raises(RuntimeError) as raised:
        opened(file, images=str(photo_folder))
    text = str(raised.value)
    assert text.startswith("2 of 72 files are missing: train/cat/gone.jpg (row 3), nowhere/gone")
    assert "\n" not in text and "data.max_bad_fraction=0.1;" in text and "check-dataset" in text
    train, _ = opened(file, images=str(photo_folder), max_bad_fraction=0.9)
    assert "2 of 72 files are missing" in caplog.text
    (batch,) = epoch_of(loader_of(train, batch_size=48, max_bad_fraction=1.0))
    assert [damage.key for damage in batch.damage] == [f"{photo_folder}/train/cat/gone.jpg"]


def test_a_source_holds_no_python_object_per_row_and_survives_pickling(tmp_path: Path) -> None:
    rows = [{"path": f"a/{i:05d}.jpg", "label": "xy"[i % 2]} for i in range(1000)]
    small_datasets.write(tmp_path, *(row["path"] for row in rows))
    file = write(tmp_path / "labels.csv", rows)
    train, val = opened(file, val_fraction=0.1)
    sent = pickle.dumps((train, val))
    assert len(sent) < 1000 * 48
    again, _ = pickle.loads(sent)
    assert again.key(7) == train.key(7) and torch.equal(again.labels, train.labels)
    assert len(train) + len(val) == 1000 and 80 < len(val) < 120


def test_the_only_table_of_the_channel_is_read(photo_folder: Path, tmp_path: Path) -> None:
    channel = tmp_path / "training"
    channel.mkdir()
    write(channel / "labels.jsonl", rows_of(photo_folder))
    data = DataConfig(format="manifest", images=str(photo_folder))
    assert len(open_source(data, "train", tmp_path)) == 48


@pytest.mark.parametrize(
    ("task", "kind"),
    [("classification", None), ("multilabel", "labels"), ("regression", "numbers")],
)
def test_the_task_says_how_to_read_the_labels(task: str, kind: str | None) -> None:
    overrides = ["data=manifest", "data.root=labels.csv", f"task.name={task}"]
    assert load_train_config(overrides)[0].data.table.kind == kind
    named, _ = load_train_config([*overrides, "data.table.kind=class"])
    assert named.data.table.kind == "class"
