"""Datasets as people have them, each in a small form, and what opening them finds.

`layouts.json` holds what 56ed78c found: the kind of label, the classes in their order, and of each
split the number of images, the first and last keys and the first labels. It is the record of that
commit, not of this one: `python -m tests.recorded.layouts`, which writes it, runs the code of
56ed78c. Use it only to add a layout; what is decided to differ is a row of `decided.py`.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from PIL import Image

from tests.recorded import driver
from tests.recorded.frozen import extracted, run_in

FILE = Path(__file__).with_name("layouts.json")
CLASSES = ("wren", "Ant", "bee 2")
"""In another order than sorted."""
COUNT = 30
Row = dict[str, Any]
Layout = Callable[[Path], list[str]]
LAYOUTS: dict[str, Layout] = {}
"""By name: a function that writes the dataset into a folder and returns overrides of a training."""


def layout(write: Layout) -> Layout:
    LAYOUTS[write.__name__] = write
    return write


# Parts of layouts.


def image(number: int, suffix: str = "jpg") -> bytes:
    content = io.BytesIO()
    picture = Image.new("RGB", (20 + number % 3, 16), (number * 8 % 256, number * 5 % 256, 90))
    picture.save(content, {"jpg": "JPEG"}.get(suffix, suffix.upper()))
    return content.getvalue()


def write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def write_classes(root: Path, splits: Iterable[str], suffixes: tuple[str, ...] = ("jpg",)) -> None:
    """root/<split>/<class>/NN.jpg, five of each class."""
    for number, (split, name, n) in enumerate(
        (split, name, n) for split in splits for name in CLASSES for n in range(5)
    ):
        suffix = suffixes[number % len(suffixes)]
        write(root / split / name / f"{n:02d}.{suffix}", image(number, suffix))


def class_of(number: int) -> str:
    return CLASSES[number % len(CLASSES)]


def labels_of(number: int) -> list[str]:
    return [name for n, name in enumerate(CLASSES) if number >> n & 1]


def split_of(number: int) -> str:
    return "val" if number % 5 == 0 else "train"


def rows(folder: Path, below: str = "", **columns: Callable[[int], Any]) -> list[Row]:
    """A row for each of COUNT images, which are written into `folder`."""
    for number in range(COUNT):
        write(folder / f"photos/{number:02d}.jpg", image(number))
    return [
        {"path": f"{below}photos/{number:02d}.jpg"}
        | {name: cell(number) for name, cell in columns.items()}
        for number in range(COUNT)
    ]


def write_table(file: Path, content: list[Row]) -> list[str]:
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        pa.parquet.write_table(pa.Table.from_pylist(content), file)
    elif file.suffix in (".csv", ".tsv"):
        with file.open("w", encoding="utf-8", newline="") as opened:
            delimiter = "\t" if file.suffix == ".tsv" else ","
            writer = csv.DictWriter(opened, list(content[0]), delimiter=delimiter)
            writer.writeheader()
            writer.writerows(content)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in content), encoding="utf-8")
    return ["data=manifest", f"data.root={file}"]


def write_tar(file: Path, numbers: Iterable[int], suffix: str, label: Callable[[int], Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as tar:
        for number in numbers:
            text = json.dumps(label(number)) if suffix == "json" else str(label(number))
            for name, content in (("jpg", image(number)), (suffix, text.encode())):
                member = tarfile.TarInfo(f"{number:03d}.{name}")
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))


def write_images(file: Path, numbers: Iterable[int], names: tuple[str, ...] = CLASSES) -> None:
    """A Parquet file of images as Hugging Face's datasets have it."""
    chosen = list(numbers)
    feature = {"names": list(names), "_type": "ClassLabel"}
    described = {"info": {"features": {"image": {"_type": "Image"}, "label": feature}}}
    images = [{"bytes": image(number), "path": f"{number}.jpg"} for number in chosen]
    form = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    table = pa.table(
        {"image": pa.array(images, form), "label": [number % len(names) for number in chosen]}
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"huggingface": json.dumps(described)}
    pa.parquet.write_table(table.replace_schema_metadata(metadata), file, row_group_size=4)


def write_masks(root: Path, split: str, numbers: Iterable[int]) -> None:
    for number in numbers:
        write(root / split / "images" / f"{number:02d}.jpg", image(number))
        write(root / split / "masks" / f"{number:02d}.png", mask(number))


def mask(number: int) -> bytes:
    content = io.BytesIO()
    pixels = np.zeros((16, 20 + number % 3), np.uint8)
    pixels[number % 16 :, 5:] = 1 + number % 2
    pixels[0] = 255
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


# Class folders.


@layout
def folders(root: Path) -> list[str]:
    write_classes(root, ("train", "val"))
    return ["data=folder", f"data.root={root}"]


@layout
def folders_valid_of_mixed_formats(root: Path) -> list[str]:
    write_classes(root, ("train", "valid"), ("png", "jpg", "webp", "bmp"))
    write(root / "train" / CLASSES[0] / "below" / "deep.jpg", image(1))
    write(root / "train" / ".hidden" / "0.jpg", image(2))
    return ["data=folder", f"data.root={root}"]


@layout
def folders_validation_and_test(root: Path) -> list[str]:
    write_classes(root, ("train", "validation", "test"))
    return ["data=folder", f"data.root={root}"]


@layout
def folders_without_splits(root: Path) -> list[str]:
    write_classes(root, ("",))
    return ["data=folder", f"data.root={root}", "data.val_fraction=0.3"]


@layout
def folders_of_train_and_test(root: Path) -> list[str]:
    write_classes(root, ("train", "test"))
    return ["data=folder", f"data.root={root}", "data.val_fraction=0.2"]


@layout
def folder_of_links(root: Path) -> list[str]:
    write_classes(root / "store", ("a", "b"))
    for split, target in (("train", "a"), ("val", "b")):
        (root / "set").mkdir(exist_ok=True)
        (root / "set" / split).symlink_to(root / "store" / target)
    return ["data=folder", f"data.root={root / 'set'}"]


@layout
def demo(root: Path) -> list[str]:
    sizes = ["+data.kwargs.train_images=20", "+data.kwargs.val_images=10"]
    return ["data=demo", f"data.root={root / 'demo'}", *sizes]


@layout
def own_source(root: Path) -> list[str]:
    for number in range(COUNT):
        write(root / f"{class_of(number)}_{number:02d}.jpg", image(number))
    return ["data=folder", f"data.root={root}", "data.format=project.sources.by_file_name"]


# Tables.


@layout
def csv_of_classes(root: Path) -> list[str]:
    return write_table(root / "labels.csv", rows(root, label=class_of, split=split_of))


@layout
def csv_without_splits(root: Path) -> list[str]:
    return write_table(root / "labels.csv", rows(root, **{"class": class_of}))


@layout
def tsv_with_validation_and_test(root: Path) -> list[str]:
    words = ("train", "validation", "test", "train", "training")
    content = rows(root, label=class_of, split=lambda number: words[number % 5])
    return write_table(root / "labels.tsv", content)


@layout
def csv_with_other_columns(root: Path) -> list[str]:
    content = rows(root, "s3://bucket/", a=class_of, b=lambda n: ("fit", "valid")[n % 4 == 1])
    content = [{"where": row.pop("path"), **row} for row in content]
    table = write_table(root / "table" / "labels.csv", content)
    columns = ["data.table.path=where", "data.table.labels=[a]", "data.table.split=b"]
    fit = [row | {"b": row["b"].replace("fit", "train")} for row in content]
    write_table(root / "table" / "labels.csv", fit)
    return [*table, *columns, "data.table.prefix=s3://bucket/", f"data.images={root}"]


@layout
def parquet_of_whole_numbers(root: Path) -> list[str]:
    """Sorted by value: 1, 2, 10."""
    content = rows(root, label=lambda number: (10, 2, 1)[number % 3])
    return [*write_table(root / "labels.parquet", content), "data.val_fraction=0.3"]


@layout
def csv_of_whole_numbers(root: Path) -> list[str]:
    content = rows(root, label=lambda number: number % 12, split=lambda n: ("train", "val")[n > 20])
    return write_table(root / "labels.csv", content)


@layout
def json_lines_of_lists(root: Path) -> list[str]:
    content = rows(root, label=labels_of, split=split_of)
    return [*write_table(root / "labels.jsonl", content), "task=multilabel"]


@layout
def csv_of_joined_labels(root: Path) -> list[str]:
    content = rows(root, labels=lambda number: ";".join(labels_of(number)), split=split_of)
    table = write_table(root / "labels.csv", content)
    return [*table, "task=multilabel", "data.table.separator=;"]


@layout
def csv_of_columns_of_labels(root: Path) -> list[str]:
    content = rows(root, tall=lambda n: n % 2, dark=lambda n: n // 2 % 2, split=split_of)
    table = write_table(root / "labels.csv", content)
    return [*table, "task=multilabel", "data.table.labels=[tall,dark]"]


@layout
def csv_of_numbers(root: Path) -> list[str]:
    content = rows(root, label=lambda number: number / 7, split=split_of)
    return [*write_table(root / "labels.csv", content), "task=regression"]


@layout
def parquet_of_columns_of_numbers(root: Path) -> list[str]:
    content = rows(root, y=lambda n: n / 3, x=lambda n: -n, split=split_of)
    table = write_table(root / "labels.parquet", content)
    return [*table, "task=regression", "data.table.labels=[y,x]"]


@layout
def json_lines_of_lists_of_numbers(root: Path) -> list[str]:
    content = rows(root, label=lambda number: [number, number / 2], split=split_of)
    return [*write_table(root / "labels.ndjson", content), "task=regression"]


@layout
def augmented_manifest(root: Path) -> list[str]:
    """As SageMaker Ground Truth writes it."""
    content = [
        {
            "source-ref": row["path"],
            "bird": number % 2,
            "bird-metadata": {
                "class-name": CLASSES[number % 2],
                "type": "groundtruth/image-classification",
            },
        }
        for number, row in enumerate(rows(root, "s3://bucket/"))
    ]
    table = write_table(root / "output.manifest", content)
    return [*table, "data.table.prefix=s3://bucket/", "data.val_fraction=0.3"]


@layout
def imagefolder_with_metadata(root: Path) -> list[str]:
    for split in ("train", "validation"):
        content = rows(root / split, label=class_of)[: 20 if split == "train" else 8]
        content = [{"file_name": row.pop("path"), **row} for row in content]
        write_table(root / split / "metadata.csv", content)
    return ["data=manifest", f"data.root={root}"]


# Tar files and Parquet files of others.


@layout
def tars_of_classes(root: Path) -> list[str]:
    write_tar(root / "train-000.tar", range(12), "cls", lambda number: number % 3)
    write_tar(root / "train-001.tar", range(12, 20), "cls", lambda number: number % 3)
    write_tar(root / "val-000.tar", range(20, 30), "cls", lambda number: number % 3)
    return ["data=webdataset", f"data.root={root}"]


@layout
def tars_of_texts_in_folders(root: Path) -> list[str]:
    write_tar(root / "train" / "0.tar", range(20), "txt", class_of)
    write_tar(root / "valid" / "0.tar", range(20, 30), "txt", class_of)
    return ["data=webdataset", f"data.root={root}"]


@layout
def tars_of_json(root: Path) -> list[str]:
    write_tar(root / "train.tar", range(20), "json", lambda number: {"labels": labels_of(number)})
    write_tar(root / "validation.tar", range(20, 30), "json", lambda n: {"labels": labels_of(n)})
    return ["data=webdataset", f"data.root={root}", "task=multilabel"]


@layout
def tar_without_splits(root: Path) -> list[str]:
    write_tar(root / "photos.tar", range(COUNT), "json", lambda number: {"label": class_of(number)})
    return ["data=webdataset", f"data.root={root / 'photos.tar'}", "data.val_fraction=0.3"]


@layout
def tars_of_a_pattern(root: Path) -> list[str]:
    write_tar(root / "a-train-000.tar", range(12), "cls", lambda number: number % 3)
    write_tar(root / "a-val-000.tar", range(12, 20), "cls", lambda number: number % 3)
    write_tar(root / "not-this-train.tar", range(20, 30), "cls", lambda number: number % 3)
    return ["data=webdataset", f"data.root='{root}/a-{{train,val}}-{{000..000}}.tar'"]


@layout
def parquet_of_hugging_face(root: Path) -> list[str]:
    write_images(root / "data" / "train-00000-of-00002.parquet", range(12))
    write_images(root / "data" / "train-00001-of-00002.parquet", range(12, 20))
    write_images(root / "data" / "validation-00000-of-00001.parquet", range(20, 30))
    return ["data=parquet", f"data.root={root}"]


@layout
def parquet_without_splits(root: Path) -> list[str]:
    write_images(root / "photos.parquet", range(COUNT))
    return ["data=parquet", f"data.root={root / 'photos.parquet'}", "data.val_fraction=0.3"]


@layout
def parquet_of_bytes_and_labels(root: Path) -> list[str]:
    for split, numbers in (("train", range(20)), ("val", range(20, 30))):
        content = [{"jpeg": image(n), "label": class_of(n), "tags": labels_of(n)} for n in numbers]
        write_table(root / f"{split}.parquet", content)
    columns = ["data.table.path=jpeg", "data.table.labels=[tags]", "task=multilabel"]
    return ["data=parquet", f"data.root={root}", *columns]


# Packed datasets.


@layout
def packed(root: Path) -> list[str]:
    write_classes(root / "photos", ("train", "val"), ("jpg", "png"))
    driver.pack(f"source={root / 'photos'}", f"output={root / 'packed'}", "shard_mb=0.002")
    return ["data=shards", f"data.root={root / 'packed'}"]


@layout
def packed_stream(root: Path) -> list[str]:
    return [*packed(root), "data.access=stream"]


@layout
def packed_in_parts(root: Path) -> list[str]:
    write_classes(root / "photos", ("train", "val"))
    for part in ("1/2", "2/2"):
        small = ("shard_mb=0.002", f"part={part}")
        driver.pack(f"source={root / 'photos'}", f"output={root / 'packed'}", *small)
    return ["data=shards", f"data.root={root / 'packed'}"]


@layout
def packed_labels(root: Path) -> list[str]:
    json_lines_of_lists(root)
    kind = "table.kind=labels"
    driver.pack(f"source={root / 'labels.jsonl'}", f"output={root / 'packed'}", kind)
    return ["data=shards", f"data.root={root / 'packed'}", "task=multilabel"]


@layout
def packed_numbers_of_a_hash(root: Path) -> list[str]:
    file = root / "labels.csv"
    write_table(file, rows(root, label=lambda number: number / 7))
    options = ("table.kind=numbers", "val_fraction=0.3")
    driver.pack(f"source={file}", f"output={root / 'packed'}", *options)
    return ["data=shards", f"data.root={root / 'packed'}", "task=regression"]


# Masks.


@layout
def mask_folders(root: Path) -> list[str]:
    write_masks(root, "train", range(8))
    write_masks(root, "val", range(8, 12))
    (root / "classes.txt").write_text("ground\ndisc\nsquare\n")
    return ["data=masks", f"data.root={root}", "task=segmentation"]


@layout
def mask_table(root: Path) -> list[str]:
    write_masks(root, "all", range(COUNT))
    content = [
        {"path": f"all/images/{n:02d}.jpg", "mask": f"all/masks/{n:02d}.png", "split": split_of(n)}
        for n in range(COUNT)
    ]
    write_table(root / "masks.csv", content)
    (root / "classes.txt").write_text("ground\ndisc\nsquare\n")
    return ["data=masks", f"data.root={root / 'masks.csv'}", "task=segmentation"]


# What opening finds.


def found(name: str, folder: Path) -> Row:
    """What opening the layout finds; `folder` is new and gets the dataset."""
    folder.mkdir()
    overrides = LAYOUTS[name](folder)
    row: Row = {}
    for word, split in driver.opened(overrides).items():
        keys = [key.removeprefix(f"{folder}/") for key in split.keys]
        labels = np.round(split.labels[:6], 4).tolist()
        if split.kind == "targets":
            labels = _values_of_masks(overrides, word)
        row |= {"kind": split.kind, "classes": split.classes}
        row[word] = {"images": len(keys), "first": keys[:3], "last": keys[-2:], "labels": labels}
    return row


def _values_of_masks(overrides: list[str], split: str) -> list[list[int]]:
    """The values in the masks of the first images."""
    batches = driver.batches(overrides, split, 1, 0, 1)(0, 0)
    return [np.unique(masks).tolist() for _, masks, _ in islice(batches, 4)]


def main(arguments: list[str]) -> None:
    """Write what this tree finds into a file; without arguments, what 56ed78c finds, as a record."""
    with tempfile.TemporaryDirectory() as temporary:
        if arguments:
            record = {name: found(name, Path(temporary, name)) for name in LAYOUTS}
            Path(arguments[0]).write_text(json.dumps(record))
            return
        file = Path(temporary, "found.json")
        run_in(extracted(Path(temporary, "tree")), "tests.recorded.layouts", str(file))
        lines = [
            f'  "{name}": {json.dumps(row)}' for name, row in json.loads(file.read_text()).items()
        ]
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
