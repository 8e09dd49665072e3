"""What can be predicted with any engine: folders, images, tables, packed datasets; what cannot."""

import io
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from entry_point.data.sources.shards import ShardSource
from entry_point.job.program import ExitCode
from tests import commands
from tests.entry_point.data.engines.every_engine import ENGINES
from tests.entry_point.prediction.predicted import assert_same, rows, run
from tests.entry_point.training.ways import write_others


@pytest.mark.parametrize("engine", ENGINES)
def test_every_engine_predicts_a_folder_with_one_row_per_image(
    engine: str, model: Path, images: Path, tmp_path: Path
) -> None:
    assert run(model, images, tmp_path / "pillow") == 0
    way = (f"pipeline={engine}", "pipeline.num_workers=1")
    assert run(model, images, tmp_path / "found", *way) == 0
    found, expected = (rows(tmp_path / name) for name in ("found", "pillow"))
    assert [row["path"] for row in found] == [row["path"] for row in expected]
    (bad,) = [row for row in found if row["error"]]
    assert bad["path"] == "c/1.jpg"
    empty = {key for key, value in bad.items() if value is None}
    assert empty == {"class", "class_index", "probability", "scores"}
    for one, other in zip(found, expected, strict=True):
        if one != bad:
            assert one["scores"] == pytest.approx(other["scores"], abs=0.01)
            assert one["class_index"] == max(range(3), key=one["scores"].__getitem__)
            assert one["probability"] == one["scores"][one["class_index"]]


@pytest.mark.parametrize("engine", ENGINES)
def test_parts_of_a_packed_dataset_go_through_its_splits_in_order(
    engine: str, model: Path, packed: Path, tmp_path: Path
) -> None:
    expected = []
    for split in ("train", "val"):
        source = ShardSource(packed, split)
        expected += [f"{split}/{source.name(i)}" for i in range(len(source))]
    assert len(expected) == 72
    way = (f"pipeline={engine}", "pipeline.num_workers=1")
    for number in (1, 2, 3):
        assert run(model, packed, tmp_path / "output", f"part={number}/3", *way) == 0
    found = rows(tmp_path / "output")
    assert [row["path"] for row in found] == expected
    assert not [row for row in found if row["error"]]
    assert run(model, packed / "val", tmp_path / "val", *way) == 0
    assert_same(rows(tmp_path / "val"), found[48:])


@pytest.mark.parametrize("source", ["tars", "parquet"])
def test_tar_and_parquet_files_of_others_get_the_predictions_of_their_images(
    source: str, model: Path, photo_folder: Path, tmp_path: Path
) -> None:
    """Of all splits, without reading the labels; also of one file alone."""
    others = write_others(source, photo_folder, tmp_path / source)
    assert run(model, others, tmp_path / "found") == 0
    assert run(model, photo_folder, tmp_path / "expected") == 0
    found, expected = (rows(tmp_path / name) for name in ("found", "expected"))
    assert len(found) == len(expected) == 72
    by_scores = [sorted(row["scores"] for row in table) for table in (found, expected)]
    assert by_scores[0] == [pytest.approx(scores, abs=1e-5) for scores in by_scores[1]]
    assert len({row["path"] for row in found}) == 72 and not any(row["error"] for row in found)
    first = min(row["path"] for row in found)
    assert first.startswith("train-000.tar/" if source == "tars" else "data/train-")
    file = min(path for path in others.rglob("*.*") if path.suffix in (".tar", ".parquet"))
    assert run(model, file, tmp_path / "file") == 0
    of_file = [row["scores"] for row in rows(tmp_path / "file")]
    assert 0 < len(of_file) < 72 and of_file[0] in [pytest.approx(row["scores"]) for row in found]


def test_a_folder_gives_images_of_any_format_below_it_counts_others_and_ignores_hidden_files(
    model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A table beside the images makes no dataset of them."""
    images = tmp_path / "images"
    (images / "deep").mkdir(parents=True)
    (images / ".hidden").mkdir()
    Image.new("RGBA", (50, 40)).save(images / "deep" / "good.PNG")
    Image.new("L", (1, 1)).save(images / "tiny.gif")
    pq.write_table(pa.table({"path": ["tiny.gif"]}), images / "labels.parquet")
    for name in ("notes.txt", "phone.heic", "._photo.jpg", ".hidden/a.jpg"):
        (images / name).write_text("Pillow reads none of these")
    assert run(model, images, tmp_path / "output") == 0
    found = [(row["path"], row["error"]) for row in rows(tmp_path / "output")]
    assert found == [("tiny.gif", None), ("deep/good.PNG", None)]
    assert "skipping 3 files: 1 .parquet, 1 .txt, 1 .heic" in caplog.text


def test_an_image_alone_is_named_without_its_folder_and_a_damaged_one_is_not_predicted(
    model: Path, images: Path, tmp_path: Path
) -> None:
    """Pillow would read the damaged JPEG."""
    assert run(model, images / "a/0.jpg", tmp_path / "one") == 0
    (row,) = rows(tmp_path / "one")
    assert row["path"] == "0.jpg" and row["class"] in ("cat, big", "dog", "fish")
    whole = (images / "a/0.jpg").read_bytes()
    (tmp_path / "cut.jpg").write_bytes(whole[: len(whole) // 2] + whole[-len(whole) // 3 :])
    with Image.open(tmp_path / "cut.jpg") as image:
        image.load()
    assert run(model, tmp_path / "cut.jpg", tmp_path / "cut", "pipeline=threads") == 0
    (row,) = rows(tmp_path / "cut")
    assert row["error"].startswith("Corrupt JPEG data") and row["class"] is None


def test_names_keep_what_is_utf8_and_escape_other_bytes(
    model: Path, images: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "names"
    folder.mkdir()
    given = ["caf\udce9.jpg", "epoch=1 loss=7.jpg", "\x1b[31mred.jpg", "été.jpg"]
    for name in given:
        shutil.copy(images / "a/0.jpg", folder / name)
        (folder / f"bad {name}").write_bytes(b"no image")
    assert run(model, folder, tmp_path / "output") == 0
    found = {row["path"] for row in rows(tmp_path / "output")}
    kept = [name.replace("\udce9", r"\udce9") for name in given]
    assert found == {*kept, *(f"bad {name}" for name in kept)}
    printed = capfd.readouterr().err
    assert r"bad caf\udce9.jpg: not an image" in printed and "\x1b" not in printed


@pytest.mark.parametrize("suffix", ["csv", "parquet", "jsonl"])
def test_a_table_gives_a_row_for_each_of_its_rows_named_as_in_the_table(
    suffix: str, model: Path, images: Path, tmp_path: Path
) -> None:
    """Labels are not needed, and an image may be listed twice."""
    uri = "s3://bucket/photos/"
    names = ["b/2.jpg", "a/0.jpg", "none.jpg", "b/2.jpg", "c/1.jpg"]
    paths, table = [f"{uri}{name}" for name in names], tmp_path / f"list.{suffix}"
    if suffix == "parquet":
        pq.write_table(pa.table({"id": [1, 2, 3, 4, 5], "file": paths}), table)
    elif suffix == "csv":
        table.write_text("\n".join(["file", *paths]))
    else:
        table.write_text("\n".join(f'{{"file": "{path}"}}' for path in paths))
    where = [f"images={images}", f"table.prefix={uri}"]
    for number in (1, 2):
        assert run(model, table, tmp_path / "output", *where, f"part={number}/2") == 0
    found = rows(tmp_path / "output")
    assert [row["path"] for row in found] == paths
    assert [bool(row["error"]) for row in found] == [False, False, True, False, True]
    assert found[2]["error"] == "No such file or directory"
    assert run(model, images, tmp_path / "folder") == 0
    by_path = {row["path"]: row for row in rows(tmp_path / "folder")}
    good = [0, 1, 3]
    assert_same([{**found[i], "path": names[i]} for i in good], [by_path[names[i]] for i in good])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["file", "../secret.jpg"], "row 1: the path '../secret.jpg' leads out of the folder"),
        (["file", ""], "holds no rows, only a header"),
        (["name", "a.jpg"], "set data.table.path=COLUMN"),
    ],
)
def test_a_table_that_cannot_be_used_is_one_line(
    lines: list[str],
    message: str,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    table = tmp_path / "list.csv"
    table.write_text("\n".join(lines))
    assert run(model, table, tmp_path / "output") == ExitCode.USAGE
    error = capsys.readouterr().err
    assert message in error and str(table) in error and error.count("\n") == 1


def test_predict_takes_the_settings_of_data_that_messages_name(
    model: Path, images: Path, tmp_path: Path
) -> None:
    table = tmp_path / "list.csv"
    table.write_text("name\na/0.jpg")
    named = [f"data.root={table}", "data.table.path=name", f"data.images={images}"]
    assert run(model, tmp_path / "another.csv", tmp_path / "output", *named) == 0
    assert [row["path"] for row in rows(tmp_path / "output")] == ["a/0.jpg"]


def test_gray_images_are_read_with_the_bits_that_are_named(model: Path, tmp_path: Path) -> None:
    gray = np.random.default_rng(1).integers(0, 256, (40, 40), np.uint8)
    files = {"8.png": gray, "12.png": gray.astype(np.uint16) * 16 + gray // 16}
    (folder := tmp_path / "images").mkdir()
    for name, pixels in files.items():
        Image.fromarray(pixels).save(folder / name)

    def scores(output: str, *more: str) -> list[list[float]]:
        assert run(model, folder, tmp_path / output, *more) == 0
        return [row["scores"] for row in rows(tmp_path / output)]

    of_12, of_8 = scores("named", "data.gray_bits=12")
    assert of_12 == pytest.approx(of_8, abs=1e-5)
    assert scores("unnamed")[0] != pytest.approx(of_8, abs=1e-5)
    assert run(model, folder, tmp_path / "unnamed", "data.gray_bits=12") == ExitCode.USAGE


def test_a_folder_without_images_is_an_error(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    assert run(model, tmp_path / "empty", tmp_path / "output") == ExitCode.USAGE
    assert "holds no image files" in capsys.readouterr().err
    assert not (tmp_path / "output").exists()


def archived(model: Path, archive: Path) -> tarfile.TarFile:
    """The model folder as SageMaker packs it, still open."""
    tar = tarfile.open(archive, "w:gz")
    tar.add(model, ".")
    return tar


def test_the_archive_of_a_job_on_sagemaker_is_a_model(
    model: Path, images: Path, tmp_path: Path
) -> None:
    """Parts made with the archive and with its folder belong together."""
    archived(model, archive := tmp_path / "model.tar.gz").close()
    for number, given in ((1, archive), (2, model)):
        assert run(given, images, tmp_path / "output", f"part={number}/2") == 0
    assert len(rows(tmp_path / "output")) == 12


def test_what_is_wrong_in_an_archive_is_named_by_the_archive(
    model: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(model, changed := tmp_path / "changed/model")
    (changed / "classes.json").write_text("{}")
    archive = tmp_path / "model.tar.gz"
    layout = " has no config.yaml at its top: pack it with `tar -czf FILE -C MODEL_FOLDER .`\n"
    for folder, words in ((changed, "/classes.json cannot be loaded"), (changed.parent, layout)):
        archived(folder, archive).close()
        assert run(archive, images, tmp_path / "output") == ExitCode.USAGE
        assert f"predict: {archive}{words}" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["leads out", "cut", "no archive"])
def test_a_bad_archive_is_refused_in_one_line_and_leaves_nothing(
    kind: str, model: Path, images: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with archived(model, archive := tmp_path / "model.tar.gz") as tar:
        if kind == "leads out":
            member = tarfile.TarInfo("../outside")
            member.size = 1
            tar.addfile(member, io.BytesIO(b"x"))
    if kind == "cut":
        archive.write_bytes(archive.read_bytes()[:5000])
    elif kind == "no archive":
        archive.write_bytes(b"no archive")
    assert run(archive, images, tmp_path / "output") == ExitCode.USAGE
    error = capsys.readouterr().err
    assert f"{archive} cannot be unpacked safely" in error and error.count("\n") == 1
    assert not (tmp_path / "output").exists()


@pytest.mark.parametrize(
    ("file", "content", "hint"),
    [
        ("model.safetensors", b"cut short", "copy the model again"),
        ("config.yaml", b"model: {name: ", "copy the model again"),
        ("config.yaml", b"model: {nam: resnet18}", "use the image that trained it"),
        ("classes.json", None, "copy the model again"),
    ],
)
def test_the_error_for_a_damaged_model_folder_is_one_line_that_names_the_file(
    file: str,
    content: bytes | None,
    hint: str,
    model: Path,
    images: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copytree(model, damaged := tmp_path / "model")
    if content is None:
        (damaged / file).unlink()
    else:
        (damaged / file).write_bytes(content)
    assert run(damaged, images, tmp_path / "output") == ExitCode.USAGE
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("predict: ") and f"{damaged}/{file}" in error
    assert hint in error


def test_damaged_images_are_listed(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, output = tmp_path / "images", tmp_path / "output"
    images.mkdir()
    Image.new("L", (1, 1)).save(images / "tiny.gif")
    for number in range(21):
        (images / f"{number}.jpg").write_bytes(b"\xff\xd8\xff")
    assert run(model, images, output, "pipeline=threads") == ExitCode.FINISHED
    error = capsys.readouterr().err
    assert f"{images / '0.jpg'}: not a JPEG" in error
    assert error.count(": not a JPEG") == 20
    assert "damaged, but not listed: 1, see the column error" in error
    counts = "predict: 1 image predicted, 21 damaged"
    file = output / "part-1-of-1.parquet"
    assert error.endswith(f"{counts}; written to {file}\n")


NAMED = ("input={model}", "model_dir={model}", "output_dir={latest}/output")


def test_a_file_in_the_place_of_the_output_folder_is_named(
    model: Path, images: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = images / "a/0.jpg"
    assert run(model, images, file) == ExitCode.USAGE
    assert f"output_dir={file} cannot be written: File exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*NAMED, "input=/no/such"], "input=/no/such"),
        ([*NAMED, "model_dir=/no/such"], "model_dir=/no/such"),
        (["model_dir={model}"], "input: has no value"),
        (["input={model}", "model_dir={model}"], "output_dir: has no value; add output_dir=PATH"),
        (["output=logits"], "'scores' or 'features'"),
        ([*NAMED, "model_dir={latest}/model"], "({latest} points to other-run)"),
    ],
)
def test_the_error_for_a_wrong_request_is_one_line(
    arguments: list[str],
    message: str,
    model: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    latest = tmp_path / "latest"
    latest.symlink_to("other-run")
    paths = {"model": model, "latest": latest}
    filled = [argument.format(**paths) for argument in arguments]
    assert commands.predict(filled) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert message.format(**paths) in error
    assert error.count("\n") == 1
