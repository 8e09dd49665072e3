"""Datasets as people have them, each in a small form, and what opening them finds.

`layouts.json` holds what version 1.1.0 found: the kind of label, the classes in their order, and of
each split the number of images, the first and last keys and the first labels. It is the record of
that version, not of this one: `python -m tests.recorded.layouts`, which writes it, runs the code of
1.1.0. Use it only to add a layout; what is decided to differ is a row of `decided.py`.
"""

from __future__ import annotations

import csv
import json
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from io import BytesIO, StringIO
from itertools import islice, product
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
Labels = Callable[[int], Any]
"""The label of an image by its number."""
Writer = Callable[[Path], Path | None]
LAYOUTS: dict[str, tuple[Writer, tuple[str, ...]]] = {}
"""What writes the dataset into a folder, and overrides of a training that reads it."""


def layout(*overrides: str) -> Callable[[Writer], Writer]:
    """A function that writes a dataset, and returns its path unless that is the given folder."""

    def keep(writer: Writer) -> Writer:
        LAYOUTS[writer.__name__] = writer, overrides
        return writer

    return keep


def write_layout(name: str, folder: Path) -> list[str]:
    """Write the layout into the new folder; returns the overrides of a training that reads it."""
    folder.mkdir(parents=True)
    writer, overrides = LAYOUTS[name]
    return [*overrides, f"data.root='{writer(folder) or folder}'"]


# Parts of layouts.


def image(number: int, suffix: str = "jpg") -> bytes:
    """A picture of soft noise; some JPEGs are progressive, some turned by EXIF."""
    rng, content = np.random.default_rng(number), BytesIO()
    noise = Image.fromarray(rng.integers(0, 256, (7, 9, 3), dtype=np.uint8))
    picture, exif = noise.resize(size(number), Image.Resampling.BICUBIC), Image.Exif()
    if suffix != "jpg":
        picture.save(content, suffix.upper())
        return content.getvalue()
    if number % 4 == 3:
        picture, exif[0x0112] = picture.transpose(Image.Transpose.ROTATE_90), 6
    picture.save(content, "JPEG", quality=90, progressive=number % 5 == 4, exif=exif)
    return content.getvalue()


def mask(number: int) -> bytes:
    """For this picture: a rectangle of class 1 or 2 on class 0, and a line of no class."""
    (width, height), content = size(number), BytesIO()
    pixels = np.zeros((height, width), np.uint8)
    pixels[number:, 5:] = 1 + number % 2
    pixels[0] = 255
    Image.fromarray(pixels).save(content, "PNG")
    return content.getvalue()


def size(number: int) -> tuple[int, int]:
    """Upright width and height in pixels."""
    scale = 5 if number % 3 == 1 else 1  # large enough for a side index
    return scale * (70 + number * 7 % 40), scale * (60 + number * 5 % 30)


def class_of(number: int) -> str:
    return CLASSES[number % len(CLASSES)]


def labels_of(number: int) -> list[str]:
    return [name for n, name in enumerate(CLASSES) if number >> n & 1]


def split_of(number: int) -> str:
    return "val" if number % 5 == 0 else "train"


def write(file: Path, content: bytes) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content)


def write_classes(root: Path, *splits: str, suffixes: tuple[str, ...] = ("jpg",)) -> None:
    """root/<split>/<class>/NN.jpg, five of each class."""
    for number, (split, name, n) in enumerate(product(splits, CLASSES, range(5))):
        suffix = suffixes[number % len(suffixes)]
        write(root / split / name / f"{n:02d}.{suffix}", image(number, suffix))


def write_table(
    file: Path, columns: dict[str, Labels], start: str = "", path: str = "path"
) -> Path:
    """A table of COUNT photos beside it. `start` begins each path, in the column `path`."""
    rows = []
    for n in range(COUNT):
        write(file.parent / f"photos/{n:02d}.jpg", image(n))
        cells = {name: cell(n) for name, cell in columns.items()}
        rows.append({path: f"{start}photos/{n:02d}.jpg", **cells})
    return write_rows(file, rows)


def write_rows(file: Path, rows: list[Row]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    if file.suffix == ".parquet":
        pyarrow.parquet.write_table(pa.Table.from_pylist(rows), file)
    elif file.suffix in (".csv", ".tsv"):
        with file.open("w", encoding="utf-8", newline="") as opened:
            delimiter = "\t" if file.suffix == ".tsv" else ","
            writer = csv.DictWriter(opened, list(rows[0]), delimiter=delimiter)
            writer.writeheader()
            writer.writerows(rows)
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


def write_tar(file: Path, numbers: Iterable[int], suffix: str, label: Labels) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as tar:
        for number in numbers:
            text = json.dumps(label(number)) if suffix == "json" else str(label(number))
            for name, content in (("jpg", image(number)), (suffix, text.encode())):
                member = tarfile.TarInfo(f"{number:03d}.{name}")
                member.size = len(content)
                tar.addfile(member, BytesIO(content))
    return file


def write_images(file: Path, numbers: Iterable[int]) -> Path:
    """A Parquet file of images as Hugging Face's datasets have it."""
    chosen = list(numbers)
    feature = {"names": list(CLASSES), "_type": "ClassLabel"}
    described = {"info": {"features": {"image": {"_type": "Image"}, "label": feature}}}
    images = [{"bytes": image(number), "path": f"{number}.jpg"} for number in chosen]
    form = pa.struct({"bytes": pa.binary(), "path": pa.string()})
    table = pa.table({"image": pa.array(images, form), "label": [n % 3 for n in chosen]})
    table = table.replace_schema_metadata({"huggingface": json.dumps(described)})
    file.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.parquet.write_table(table, file, row_group_size=4)
    return file


def pack(source: Path, *options: str) -> Path:
    output = source.with_name("packed")
    with redirect_stdout(StringIO()):
        driver.pack(f"source={source}", f"output={output}", "shard_mb=0.02", *options)
    return output


def write_masks(root: Path, split: str, numbers: Iterable[int]) -> None:
    for number in numbers:
        write(root / split / "images" / f"{number:02d}.jpg", image(number))
        write(root / split / "masks" / f"{number:02d}.png", mask(number))
    (root / "classes.txt").write_text("ground\ndisc\nsquare\n")


# Class folders.


@layout("data=folder")
def folders(root: Path) -> None:
    write_classes(root, "train", "val")


@layout("data=folder")
def folders_valid_of_mixed_formats(root: Path) -> None:
    write_classes(root, "train", "valid", suffixes=("png", "jpg", "webp", "bmp"))
    write(root / "train" / CLASSES[0] / "below" / "deep.jpg", image(1))
    write(root / "train" / ".hidden" / "0.jpg", image(2))


@layout("data=folder")
def folders_validation_and_test(root: Path) -> None:
    write_classes(root, "train", "validation", "test")


@layout("data=folder", "data.val_fraction=0.3")
def folders_without_splits(root: Path) -> None:
    write_classes(root, "")


@layout("data=folder", "data.val_fraction=0.2")
def folders_of_train_and_test(root: Path) -> None:
    write_classes(root, "train", "test")


@layout("data=folder")
def folder_of_links(root: Path) -> Path:
    write_classes(root / "store", "a", "b")
    (root / "set").mkdir()
    (root / "set" / "train").symlink_to(root / "store" / "a")
    (root / "set" / "val").symlink_to(root / "store" / "b")
    return root / "set"


@layout("data=demo", "+data.kwargs.train_images=20", "+data.kwargs.val_images=10")
def demo(root: Path) -> Path:
    return root / "demo"


@layout("data=folder", "data.format=project.sources.by_file_name")
def own_source(root: Path) -> None:
    for number in range(COUNT):
        write(root / f"{class_of(number)}_{number:02d}.jpg", image(number))


# Tables.


@layout("data=manifest")
def csv_of_classes(root: Path) -> Path:
    return write_table(root / "labels.csv", {"label": class_of, "split": split_of})


@layout("data=manifest")
def csv_without_splits(root: Path) -> Path:
    return write_table(root / "labels.csv", {"class": class_of})


@layout("data=manifest")
def tsv_with_validation_and_test(root: Path) -> Path:
    words = ("train", "validation", "test", "train", "training")
    return write_table(root / "labels.tsv", {"label": class_of, "split": lambda n: words[n % 5]})


@layout(
    *("data=manifest", "data.table.path=where", "data.table.labels=[a]", "data.table.split=b"),
    "data.table.prefix=s3://bucket/",
)
def csv_with_other_columns(root: Path) -> Path:
    columns = {"a": class_of, "b": lambda n: ("train", "valid")[n % 4 == 1]}
    return write_table(root / "labels.csv", columns, "s3://bucket/", "where")


@layout("data=manifest", "data.val_fraction=0.3")
def parquet_of_whole_numbers(root: Path) -> Path:
    """Sorted by value: 1, 2, 10."""
    return write_table(root / "labels.parquet", {"label": lambda n: (10, 2, 1)[n % 3]})


@layout("data=manifest")
def csv_of_whole_numbers(root: Path) -> Path:
    columns = {"label": lambda n: n % 12, "split": lambda n: ("train", "val")[n > 20]}
    return write_table(root / "labels.csv", columns)


@layout("data=manifest", "task=multilabel")
def json_lines_of_lists(root: Path) -> Path:
    return write_table(root / "labels.jsonl", {"label": labels_of, "split": split_of})


@layout("data=manifest", "task=multilabel", "data.table.separator=;")
def csv_of_joined_labels(root: Path) -> Path:
    return write_table(
        root / "a.csv", {"labels": lambda n: ";".join(labels_of(n)), "split": split_of}
    )


@layout("data=manifest", "task=multilabel", "data.table.labels=[tall,dark]")
def csv_of_columns_of_labels(root: Path) -> Path:
    columns = {"tall": lambda n: n % 2, "dark": lambda n: n // 2 % 2, "split": split_of}
    return write_table(root / "labels.csv", columns)


@layout("data=manifest", "task=regression")
def csv_of_numbers(root: Path) -> Path:
    return write_table(root / "labels.csv", {"label": lambda n: n / 7, "split": split_of})


@layout("data=manifest", "task=regression", "data.table.labels=[y,x]")
def parquet_of_columns_of_numbers(root: Path) -> Path:
    return write_table(
        root / "a.parquet", {"y": lambda n: n / 3, "x": lambda n: -n, "split": split_of}
    )


@layout("data=manifest", "task=regression")
def json_lines_of_lists_of_numbers(root: Path) -> Path:
    return write_table(root / "labels.ndjson", {"label": lambda n: [n, n / 2], "split": split_of})


@layout("data=manifest", "data.table.prefix=s3://bucket/", "data.val_fraction=0.3")
def augmented_manifest(root: Path) -> Path:
    """As SageMaker Ground Truth writes it."""
    form = "groundtruth/image-classification"
    columns: dict[str, Labels] = {
        "bird": lambda n: n % 2,
        "bird-metadata": lambda n: {"class-name": CLASSES[n % 2], "type": form},
    }
    return write_table(root / "output.manifest", columns, "s3://bucket/", "source-ref")


@layout("data=manifest")
def imagefolder_with_metadata(root: Path) -> None:
    for split in ("train", "validation"):
        write_table(root / split / "metadata.csv", {"label": class_of}, path="file_name")


# Tar files and Parquet files of others.


@layout("data=webdataset")
def tars_of_classes(root: Path) -> None:
    write_tar(root / "train-000.tar", range(12), "cls", lambda n: n % 3)
    write_tar(root / "train-001.tar", range(12, 20), "cls", lambda n: n % 3)
    write_tar(root / "val-000.tar", range(20, 30), "cls", lambda n: n % 3)


@layout("data=webdataset")
def tars_of_texts_in_folders(root: Path) -> None:
    write_tar(root / "train" / "0.tar", range(20), "txt", class_of)
    write_tar(root / "valid" / "0.tar", range(20, 30), "txt", class_of)


@layout("data=webdataset", "task=multilabel")
def tars_of_json(root: Path) -> None:
    write_tar(root / "train.tar", range(20), "json", lambda n: {"labels": labels_of(n)})
    write_tar(root / "validation.tar", range(20, 30), "json", lambda n: {"labels": labels_of(n)})


@layout("data=webdataset", "data.val_fraction=0.3")
def tar_without_splits(root: Path) -> Path:
    return write_tar(root / "a.tar", range(COUNT), "json", lambda n: {"label": class_of(n)})


@layout("data=webdataset")
def tars_of_a_pattern(root: Path) -> Path:
    write_tar(root / "a-train-000.tar", range(12), "cls", lambda n: n % 3)
    write_tar(root / "a-val-000.tar", range(12, 20), "cls", lambda n: n % 3)
    write_tar(root / "not-this-train.tar", range(20, 30), "cls", lambda n: n % 3)
    return root / "a-{train,val}-{000..000}.tar"


@layout("data=parquet")
def parquet_of_hugging_face(root: Path) -> None:
    write_images(root / "data" / "train-00000-of-00002.parquet", range(12))
    write_images(root / "data" / "train-00001-of-00002.parquet", range(12, 20))
    write_images(root / "data" / "validation-00000-of-00001.parquet", range(20, 30))


@layout("data=parquet", "data.val_fraction=0.3")
def parquet_without_splits(root: Path) -> Path:
    return write_images(root / "photos.parquet", range(COUNT))


@layout("data=parquet", "data.table.path=jpeg", "data.table.labels=[tags]", "task=multilabel")
def parquet_of_bytes_and_labels(root: Path) -> None:
    for split, numbers in (("train", range(20)), ("val", range(20, 30))):
        rows = [{"jpeg": image(n), "label": class_of(n), "tags": labels_of(n)} for n in numbers]
        write_rows(root / f"{split}.parquet", rows)


# Packed datasets.


@layout("data=shards")
def packed(root: Path) -> Path:
    write_classes(root / "photos", "train", "val", suffixes=("jpg", "png"))
    return pack(root / "photos")


@layout("data=shards", "data.access=stream")
def packed_stream(root: Path) -> Path:
    return packed(root) or root


@layout("data=shards")
def packed_in_parts(root: Path) -> Path:
    write_classes(root / "photos", "train", "val")
    pack(root / "photos", "part=1/2")
    return pack(root / "photos", "part=2/2")


@layout("data=shards", "task=multilabel")
def packed_labels(root: Path) -> Path:
    return pack(json_lines_of_lists(root) or root, "table.kind=labels")


@layout("data=shards", "task=regression")
def packed_numbers_of_a_hash(root: Path) -> Path:
    table = write_table(root / "labels.csv", {"label": lambda n: n / 7})
    return pack(table, "table.kind=numbers", "val_fraction=0.3")


# Masks.


@layout("data=masks", "task=segmentation")
def mask_folders(root: Path) -> None:
    write_masks(root, "train", range(12))
    write_masks(root, "val", range(12, 20))


@layout("data=masks", "task=segmentation")
def mask_table(root: Path) -> Path:
    write_masks(root, "all", range(COUNT))
    file = "all/{}/{:02d}.{}".format
    rows = [
        {"path": file("images", n, "jpg"), "mask": file("masks", n, "png")} for n in range(COUNT)
    ]
    return write_rows(
        root / "masks.csv", [row | {"split": split_of(n)} for n, row in enumerate(rows)]
    )


# What opening finds.


def found(name: str, folder: Path, *more: str) -> Row:
    """What opening the layout finds, with `more` overrides; `folder` is new and gets the
    dataset."""
    overrides = [*write_layout(name, folder), *more]
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
    batches = islice(driver.batches(overrides, split, 1), 4)
    return [np.unique(masks).tolist() for _, masks, _ in batches]


def main(arguments: list[str]) -> None:
    """Write what this tree finds into a file; without arguments, what version 1.1.0 finds."""
    with tempfile.TemporaryDirectory() as temporary:
        if arguments:
            record = {name: found(name, Path(temporary, name)) for name in LAYOUTS}
            Path(arguments[0]).write_text(json.dumps(record))
            return
        file = Path(temporary, "found.json")
        run_in(extracted(Path(temporary, "tree")), "tests.recorded.layouts", str(file))
        record = json.loads(file.read_text())
        lines = [f'  "{name}": {json.dumps(row)}' for name, row in record.items()]
        FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
