"""Links in a dataset are part of it, everywhere; the paths in a table lead nowhere else."""

from pathlib import Path

import pytest

from entry_point.config.data_config import DataConfig
from entry_point.data.loader import open_source
from entry_point.job.program import ExitCode
from tests.commands import check_dataset, optimize
from tests.entry_point.data.packing.pack_command import pack

IMAGES = 48


@pytest.fixture
def linked(photo_folder: Path, tmp_path: Path) -> Path:
    """The photographs as people lay out parts of a store: a split, a class and files are links."""
    root = tmp_path / "linked"
    (root / "train").mkdir(parents=True)
    (root / "val").symlink_to(photo_folder / "val")
    first, *others = sorted((photo_folder / "train").iterdir())
    for folder in others:
        (root / "train" / folder.name).symlink_to(folder)
    (root / "train" / first.name).mkdir()
    for file in first.iterdir():
        (root / "train" / first.name / file.name).symlink_to(file)
    return root


def table_of(root: Path) -> Path:
    file = root / "labels.csv"
    images = [p for p in root.glob("*/*/*") if p.suffix == ".jpg"]
    rows = [f"{p.relative_to(root)},{p.parent.name},{p.parts[-3]}" for p in images]
    file.write_text("\n".join(["path,label,split", *rows]) + "\n")
    return file


@pytest.mark.parametrize("kind", ["folder", "manifest"])
def test_links_are_followed_by_training_packing_indexing_and_checks(
    linked: Path, tmp_path: Path, kind: str
) -> None:
    root = linked if kind == "folder" else table_of(linked)
    source = open_source(DataConfig(format=kind, root=str(root)), "train", root)
    assert len(source) == IMAGES and all(len(source.read(i)) for i in range(IMAGES))
    if kind == "folder":
        assert pack(root, tmp_path / "packed") == 0
        packed = DataConfig(format="shards", root=str(tmp_path / "packed"))
        assert len(open_source(packed, "train", tmp_path)) == IMAGES
        side = [f"source={root}", f"output={tmp_path / 'side'}", "output_format=index"]
        assert optimize(side) == 0 and check_dataset([f"root={root}"]) == 0


def test_a_row_whose_path_leads_out_is_refused_by_packing_indexing_and_checks(
    linked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = table_of(linked)
    with table.open("a") as file:
        file.write("train/../../outside.jpg,cat,train\n")
    packing = [f"source={table}", f"output={tmp_path / 'packed'}"]
    for program, arguments in (
        (optimize, packing),
        (optimize, [*packing, "output_format=index"]),
        (check_dataset, [f"root={table}"]),
    ):
        assert program(arguments) != ExitCode.FINISHED
        refused = f"the path 'train/../../outside.jpg' leads out of the folder {linked}"
        assert refused in capsys.readouterr().err
