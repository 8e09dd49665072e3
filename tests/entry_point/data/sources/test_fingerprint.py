"""What tells whether a dataset is the one that a checkpoint was made with."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from entry_point.config.data_config import DataConfig, TableConfig
from entry_point.data.loader import open_source
from entry_point.data.sources.source import FileSource, Source, fingerprint
from tests.entry_point.data.sources.table.labeled_tables import rows_of, write
from tests.entry_point.training.ways import pack_photos, write_others
from tests.masked_shapes import write_shapes


class Keyed(Source):
    """A source with nothing but what a source must have."""

    def __init__(self, root: Path, split: str) -> None:
        self.files = sorted((root / split).rglob("*.jpg"))
        self.classes = sorted({file.parent.name for file in self.files})
        names = [file.parent.name for file in self.files]
        self.labels = torch.tensor([self.classes.index(name) for name in names])

    def key(self, index: int) -> str:
        return str(self.files[index])


class WithoutFiles(FileSource):
    """A FileSource whose samples lie in no files."""

    def __init__(self, root: Path, split: str) -> None:
        self.samples = Keyed(root, split)
        super().__init__([], self.samples.labels, self.samples.classes)

    def key(self, index: int) -> str:
        return self.samples.key(index)


def write_table(folder: Path, output: Path) -> Path:
    shutil.copytree(folder, output)
    write(output / "labels.csv", rows_of(folder))
    return output


def by_folder(root: Path, split: str) -> FileSource:
    own = Keyed(root, split)
    return FileSource(own.files, own.labels, own.classes)


OWN = f"{__name__}."
WAYS: dict[str, tuple[Callable[[Path, Path], object], dict[str, str]]] = {
    "folder": (shutil.copytree, {"format": "folder"}),
    "table": (write_table, {"format": "manifest"}),
    "tars": (lambda *at: write_others("tars", *at), {"format": "webdataset"}),
    "parquet": (lambda *at: write_others("parquet", *at), {"format": "parquet"}),
    "shards": (pack_photos, {"format": "shards"}),
    "stream": (pack_photos, {"format": "shards", "access": "stream"}),
    "own files": (shutil.copytree, {"format": f"{OWN}by_folder"}),
    "own keys": (shutil.copytree, {"format": f"{OWN}Keyed"}),
    "own without files": (shutil.copytree, {"format": f"{OWN}WithoutFiles"}),
}
"""What writes a folder of photographs in each form, and the settings that read it."""


def found(root: Path, split: str, **settings: object) -> str:
    if settings["format"] == "manifest":
        root = root / "labels.csv"
    return fingerprint(open_source(DataConfig(root=str(root), **settings), split, root))  # type: ignore[arg-type]


@pytest.mark.parametrize("way", WAYS)
def test_it_is_the_same_elsewhere_and_another_if_one_image_has_another_label(
    way: str, photo_folder: Path, tmp_path: Path
) -> None:
    make, settings = WAYS[way]
    make(photo_folder, tmp_path / "data")
    other = Path(shutil.copytree(photo_folder, tmp_path / "relabeled photos"))
    (other / "train" / "cat" / "000.jpg").rename(other / "train" / "rocket" / "zebra.jpg")
    make(other, tmp_path / "relabeled")
    shutil.copytree(tmp_path / "data", tmp_path / "place" / "of" / "another name")
    places = ("data", "place/of/another name", "relabeled")
    train, elsewhere, relabeled = (found(tmp_path / p, "train", **settings) for p in places)
    assert train == elsewhere != relabeled
    assert train.startswith("48 (#") and relabeled.startswith("48 (#")
    val = [found(tmp_path / place, "val", **settings) for place in places]
    assert len({*val}) == 1 and val[0] != train


@pytest.mark.parametrize("kind", ["class", "labels", "numbers"])
def test_a_cell_of_a_table_that_changes_changes_it(
    kind: str, photo_folder: Path, tmp_path: Path
) -> None:
    """The files keep their names; rows for validation do not count in training."""
    rows = [{**row, "label": str(n % 3)} for n, row in enumerate(rows_of(photo_folder))]
    found = []
    for place in (None, 5, -1):
        if place is not None:
            rows[place]["label"] = str((int(rows[place]["label"]) + 1) % 3)
        file = write(tmp_path / f"{place}.csv", rows)
        table = TableConfig(kind=kind)  # type: ignore[arg-type]
        data = DataConfig(format="manifest", root=str(file), images=str(photo_folder), table=table)
        found.append([fingerprint(open_source(data, split, file)) for split in ("train", "val")])
    assert found[0][0] != found[1][0] == found[2][0]
    assert found[0][1] == found[1][1] != found[2][1]


def test_a_mask_of_another_name_changes_it(tmp_path: Path) -> None:
    root = write_shapes(tmp_path / "shapes", train=4, val=2)
    before = found(root, "train", format="masks", crop="squash")
    for kind, suffix in (("images", "jpg"), ("masks", "png")):
        folder = root / "train" / kind / "all"
        (folder / f"0.{suffix}").rename(folder / f"00.{suffix}")
    assert found(root, "train", format="masks", crop="squash") != before
