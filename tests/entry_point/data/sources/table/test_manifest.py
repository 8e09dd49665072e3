"""data=manifest on real photographs: every format and kind of labels, and how it splits."""

import json
import logging
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entry_point.config.data_config import DataConfig, PipelineConfig, TableConfig
from entry_point.config.train_config import load_train_config
from entry_point.data.errors import DataError
from entry_point.data.loader import build_loader, open_source
from entry_point.data.loader_spec import LoaderSpec
from entry_point.data.sources.dataset_description import Kind
from entry_point.data.sources.splits import chosen_for_val
from tests import commands
from tests.entry_point.data.engines.every_engine import ENGINES, Way, pipeline_of
from tests.entry_point.data.sources.class_folders import class_folder
from tests.entry_point.data.sources.table.labeled_tables import config, opened, rows_of, write

TEXT_FORMATS = (".csv", ".tsv", ".jsonl", ".json", ".ndjson", ".manifest")
FORMATS = (*TEXT_FORMATS, ".parquet")


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_gives_the_same_samples_as_the_folder(
    photo_folder: Path, tmp_path: Path, suffix: str
) -> None:
    file = write(tmp_path / f"labels{suffix}", rows_of(photo_folder))
    for split, source in zip(("train", "val"), opened(file, images=str(photo_folder)), strict=True):
        folder = class_folder(photo_folder, split)
        assert source.kind == "class" and source.classes == folder.classes
        assert torch.equal(source.labels, folder.labels)
        assert [source.key(i) for i in range(len(source))] == [
            folder.key(i) for i in range(len(folder))
        ]
        assert torch.equal(source.read(5), folder.read(5))


@pytest.mark.parametrize(("suffix", "val"), [(".csv", "validation"), (".jsonl", "val")])
def test_a_folder_with_a_metadata_table_per_split_is_a_table(
    photo_folder: Path, tmp_path: Path, suffix: str, val: str
) -> None:
    """Hugging Face's imagefolder."""
    root = tmp_path / "root"
    for split, folder in (("train", "train"), ("val", val)):
        (root / folder / "images").mkdir(parents=True)
        rows = []
        for row in rows_of(photo_folder):
            if row["split"] == split:
                name = f"images/{row['path'].replace('/', '-')}"
                shutil.copy(photo_folder / row["path"], root / folder / name)
                rows.append({"file_name": name, "label": row["label"]})
        write(root / folder / f"metadata{suffix}", rows)
    for split, source in zip(("train", "val"), opened(root), strict=True):
        folder_source = class_folder(photo_folder, split)
        assert source.classes == folder_source.classes
        assert torch.equal(source.labels, folder_source.labels)
        assert torch.equal(source.read(5), folder_source.read(5))
    assert commands.optimize([f"source={root}", f"output={tmp_path / 'packed'}"]) == 0
    assert commands.check_dataset([f"root={root}"]) == 0
    table = root / val / f"metadata{suffix}"
    write(table, [{"file_name": "../a.jpg", "label": "x"}, {"file_name": "", "label": "x"}])
    with pytest.raises(DataError, match=rf"{table}, row 2: the path '{val}/' is empty"):
        opened(root)


def test_class_folders_are_packed_although_tables_describe_their_images(
    photo_folder: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(photo_folder, tmp_path / "root"))
    for split in ("train", "val"):
        write(root / split / "metadata.csv", [{"file_name": "cat/000.jpg", "text": "a cat"}])
    assert commands.optimize([f"source={root}", f"output={tmp_path / 'packed'}"]) == 0
    assert commands.check_dataset([f"root={root}"]) == 0


CELLS: dict[str, list[Any]] = {"labels": [["a", "b"], [], ["c"]], "numbers": [0.5, 2.0, -1e3]}
LABELS = {
    "labels": (["a", "b", "c"], [[1, 1, 0], [0, 0, 0], [0, 0, 1]]),
    "numbers": (["tags"], [[0.5], [2.0], [-1000.0]]),
}


def labeled(folder: Path, file: Path, kind: Any) -> tuple[Path, dict[str, Any]]:
    """A table of the photos with these cells in turn, and the settings that read it."""
    rows = [
        {"path": row["path"], "tags": CELLS[kind][i % 3], "split": row["split"]}
        for i, row in enumerate(rows_of(folder))
    ]
    table = TableConfig(labels=["tags"], kind="labels" if kind == "labels" else None)
    return write(file, rows), {"images": str(folder), "table": table}


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("kind", CELLS)
def test_lists_of_names_become_rows_of_ones_and_numbers_stay_numbers(
    photo_folder: Path, tmp_path: Path, suffix: str, kind: str
) -> None:
    file, settings = labeled(photo_folder, tmp_path / f"tags{suffix}", kind)
    classes, labels = LABELS[kind]
    for source in opened(file, **settings):
        assert source.kind == kind and source.classes == classes
        assert source.labels.dtype == torch.float32
        assert source.labels[:3].tolist() == labels


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", ["labels", "numbers"])
def test_every_engine_passes_float_labels_on(
    photo_folder: Path, tmp_path: Path, engine: Way, kind: str
) -> None:
    file, settings = labeled(photo_folder, tmp_path / "tags.csv", kind)
    data = config(file, **settings)
    source = open_source(data, "train", file)
    spec = LoaderSpec(data, pipeline_of(engine, num_workers=1), "train", 10, seed=3)
    loader = build_loader(source, spec)
    batches = list(loader.epoch(0))
    loader.close()
    assert len(batches) == 4
    for batch in batches:
        assert batch.labels.dtype == torch.float32
        assert torch.equal(batch.labels, source.labels[batch.indices])


def test_several_columns_of_0_and_1_are_labels_or_numbers(
    photo_folder: Path, tmp_path: Path
) -> None:
    rows = [{**row, "x": i % 2, "y": i % 3 % 2} for i, row in enumerate(rows_of(photo_folder))]
    file = write(tmp_path / "columns.parquet", rows)
    found = {}
    kinds: dict[Kind | None, Kind] = {None: "labels", "labels": "labels", "numbers": "numbers"}
    for kind, expected in kinds.items():
        table = TableConfig(labels=["x", "y"], kind=kind)
        source, _ = opened(file, images=str(photo_folder), table=table)
        assert source.classes == ["x", "y"] and source.kind == expected
        found[source.kind] = source.labels
    assert torch.equal(found["numbers"], found["labels"])
    assert found["labels"][:4].tolist() == [[0, 0], [1, 1], [0, 0], [1, 0]]


def test_sagemakers_augmented_manifest_is_read_as_ground_truth_writes_it(
    photo_folder: Path, tmp_path: Path
) -> None:
    names = {"astronaut": 0, "cat": 1}
    rows = [
        {
            "source-ref": f"s3://bucket/photos/{row['path']}",
            "animal": names[row["label"]],
            "animal-metadata": {
                "class-name": row["label"],
                "confidence": 0.95,
                "type": "groundtruth/image-classification",
                "human-annotated": "yes",
            },
        }
        for row in rows_of(photo_folder)
        if row["label"] in names
    ]
    file = write(tmp_path / "output.manifest", rows)
    table = TableConfig(prefix="s3://bucket/photos/")
    train, val = opened(file, images=str(photo_folder), table=table, val_fraction=0.3)
    assert train.classes == ["astronaut", "cat"] and len(train) + len(val) == len(rows)
    for source in (train, val):
        for i in range(len(source)):
            assert f"/{source.classes[int(source.labels[i])]}/" in source.key(i)


def test_a_multilabel_manifest_of_ground_truth_names_its_labels(
    photo_folder: Path, tmp_path: Path
) -> None:
    rows = [
        {
            "source-ref": row["path"],
            "things": [0, 2] if i % 2 else [2],
            "things-metadata": {"class-map": {"0": "cat", "2": "dog"} if i % 2 else {"2": "dog"}},
        }
        for i, row in enumerate(rows_of(photo_folder))
    ]
    file = write(tmp_path / "output.manifest", rows)
    train, _ = opened(file, images=str(photo_folder), val_fraction=0.3)
    assert train.kind == "labels" and train.classes == ["cat", "dog"]
    assert train.labels[:, 1].all()


def test_a_tenth_of_a_table_without_splits_is_validated_on(
    photo_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [
        {"path": row["path"].removeprefix("train/"), "label": row["label"]}
        for row in rows_of(photo_folder)
        if row["split"] == "train"
    ]
    file = write(tmp_path / "labels.csv", rows)
    with caplog.at_level(logging.INFO):
        train, val = opened(file, images=str(photo_folder / "train"))
    assert len(train) + len(val) == len(rows) and 0 < len(val) < len(rows) / 4
    assert "by a hash of the paths, val_fraction=0.1" in caplog.text


def test_labels_of_which_no_row_has_several_are_a_warning_that_names_the_separator(
    photo_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [{**row, "label": f"{row['label']},photo"} for row in rows_of(photo_folder)]
    file = write(tmp_path / "labels.csv", rows)
    for separator, warned in (("|", True), (",", False)):
        caplog.clear()
        table = TableConfig(kind="labels", separator=separator)
        train, _ = opened(file, images=str(photo_folder), table=table)
        assert len(train.classes) == (8 if warned else 9)
        line = "no row has several labels; data.table.separator=| separates them in a cell"
        assert (line in caplog.text) == warned


def test_whole_numbers_are_classes_in_their_order(photo_folder: Path, tmp_path: Path) -> None:
    rows = [{**row, "label": 11 - i % 12} for i, row in enumerate(rows_of(photo_folder))]
    for suffix in FORMATS:
        file = write(tmp_path / f"ids{suffix}", rows)
        source, _ = opened(file, images=str(photo_folder))
        assert source.classes == [str(number) for number in range(12)]
        assert source.labels[:3].tolist() == [11, 10, 9]


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
    keys = [source.key(i) for source in (train, val) for i in range(len(source))]
    assert keys == [f"{photo_folder}/{row['path']}" for row in rows]


def test_every_row_is_accounted_for(
    photo_folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rows = rows_of(photo_folder)
    more = [{**rows[0], "split": "extra", "path": "unseen.jpg"}, {**rows[3], "split": ""}]
    file = write(tmp_path / "labels.csv", rows + more)
    with caplog.at_level(logging.INFO):
        train, val = opened(file, images=str(photo_folder))
    messages = [record.getMessage() for record in caplog.records]
    line, *_ = [text for text in messages if text.startswith(str(file))]
    assert line == (
        f"{file}: a table: 48 images for train, 24 for val (by the column 'split'); not used: 1 of "
        "split 'extra', 1 of no split; 8 classes"
    )
    assert (len(train), len(val)) == (48, 24)


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
    data = config(file, images=str(photo_folder), max_bad_fraction=1.0)
    loader = build_loader(train, LoaderSpec(data, PipelineConfig(), "train", 48, seed=0))
    (batch,) = loader.epoch(0)
    loader.close()
    assert [damage.key for damage in batch.damage] == [f"{photo_folder}/train/cat/gone.jpg"]


def test_a_source_holds_no_python_object_per_row_and_survives_pickling(tmp_path: Path) -> None:
    rows = [{"path": f"a/{i:05d}.jpg", "label": "xy"[i % 2]} for i in range(40_000)]
    (tmp_path / "a").mkdir()
    for row in rows:
        (tmp_path / row["path"]).touch()
    file = write(tmp_path / "labels.csv", rows)
    train, val = opened(file, val_fraction=0.1)
    sent = pickle.dumps((train, val))
    assert len(sent) < 40_000 * 48
    again, _ = pickle.loads(sent)
    assert again.key(7) == train.key(7) and torch.equal(again.labels, train.labels)
    assert len(train) + len(val) == 40_000 and 3600 < len(val) < 4400


@given(st.sets(st.text(min_size=1), min_size=1), st.sets(st.text(min_size=1)), st.floats(0.1, 0.9))
def test_adding_images_moves_no_other_between_splits(
    paths: set[str], more: set[str], fraction: float
) -> None:
    ordered = sorted(paths)
    before = dict(zip(ordered, chosen_for_val(ordered, fraction).tolist(), strict=True))
    everything = sorted(paths | more, reverse=True)
    after = dict(zip(everything, chosen_for_val(everything, fraction).tolist(), strict=True))
    assert before == {path: after[path] for path in ordered}


def test_the_split_by_hash_never_changes() -> None:
    """A job that resumes on another machine, or with a later release, must see the same split."""
    paths = [f"photos/{number}.jpg" for number in range(40)]
    chosen = chosen_for_val(paths, 0.25).nonzero()[0].tolist()
    assert chosen == [6, 8, 9, 12, 26, 35, 36]


def test_a_folder_without_val_is_split_by_the_same_hash(photo_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "train").symlink_to(photo_folder / "train")
    data = DataConfig(root=str(tmp_path), val_fraction=0.3)
    train, val = (open_source(data, split, tmp_path) for split in ("train", "val"))
    assert train.classes == val.classes
    keys = [source.key(i) for source in (train, val) for i in range(len(source))]
    assert sorted(keys) == [*map(str, sorted(tmp_path.glob("train/*/*")))] and len(val) > 5
    with pytest.raises(RuntimeError, match="has images for val, by the folders; remove one"):
        open_source(DataConfig(root=str(photo_folder), val_fraction=0.3), "train", tmp_path)


def test_the_only_table_of_the_channel_is_read(photo_folder: Path, tmp_path: Path) -> None:
    channel = tmp_path / "training"
    channel.mkdir()
    write(channel / "labels.jsonl", rows_of(photo_folder))
    data = DataConfig(format="manifest", images=str(photo_folder))
    assert len(open_source(data, "train", tmp_path)) == 48
    (channel / "other.csv").write_text("path,label\n")
    with pytest.raises(RuntimeError, match=r"holds labels.jsonl, other.csv: name it"):
        open_source(data, "train", tmp_path)


def test_names_may_be_any_text(photo_folder: Path, tmp_path: Path) -> None:
    rows, names = rows_of(photo_folder)[:48], ["Käse, alt", 'the "best"', "日本"]
    for i, row in enumerate(rows):
        row |= {"label": names[i % 3], "split": ["train", "val"][i % 2]}
    for suffix in FORMATS:
        source, _ = opened(write(tmp_path / f"t{suffix}", rows), images=str(photo_folder))
        assert source.classes == names
    assert json.loads((tmp_path / "t.jsonl").read_text().splitlines()[0])["label"] == "Käse, alt"


@pytest.mark.parametrize(
    ("task", "kind"),
    [("classification", None), ("multilabel", "labels"), ("regression", "numbers")],
)
def test_the_task_says_how_to_read_the_labels(task: str, kind: str | None) -> None:
    overrides = ["data=manifest", "data.root=labels.csv", f"task.name={task}"]
    assert load_train_config(overrides)[0].data.table.kind == kind
    named, _ = load_train_config([*overrides, "data.table.kind=class"])
    assert named.data.table.kind == "class"
