"""The optimised data set, made from photographs by the command a person uses."""

import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tarfile
import time
import tracemalloc
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import webdataset
from PIL import Image

from entry_point.check_dataset import main as check_dataset
from entry_point.data import DataConfig, DataError, open_source
from entry_point.data.index import read_description
from entry_point.data.packing import listing
from entry_point.data.packing.config import OptimizeConfig
from entry_point.optimize import main as optimize
from entry_point.optimize import run


def _optimize(source: Path, output: Path, *options: str) -> int:
    return optimize([f"source={source}", f"output={output}", "shard_mb=0.5", *options])


def _command(source: Path, output: Path) -> list[str]:
    options = [f"source={source}", f"output={output}", "shard_mb=0.5"]
    return [sys.executable, "-m", "entry_point.optimize", *options]


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in sorted(folder.rglob("*"))
        if file.is_file()
    }


@pytest.fixture(scope="module")
def packed(photo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("packed") / "data"
    assert _optimize(photo_folder, output) == 0
    return output


def _decoded(data: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)))


def test_every_photograph_is_packed_with_the_same_pixels_and_orientation(
    photo_folder: Path, packed: Path
) -> None:
    seen = 0
    for split in ("train", "val"):
        source = open_source(DataConfig(format="shards", root=str(packed)), split, packed)
        for i in range(len(source)):
            name = source.key(i).split(": ")[1]
            data = bytes(source.read(i).numpy())
            original = (photo_folder / split / name).read_bytes()
            np.testing.assert_array_equal(_decoded(data), _decoded(original))
            exif = [Image.open(io.BytesIO(b)).getexif().get(0x0112) for b in (data, original)]
            assert exif[0] == exif[1]
            assert source.classes[source.labels[i]] == name.split("/")[0]
            seen += 1
    assert seen == 72


def test_shards_are_tar_files_that_webdataset_reads(packed: Path) -> None:
    shards = sorted(str(file) for file in (packed / "train").glob("*.tar"))
    assert len(shards) > 2
    samples = list(webdataset.WebDataset(shards, shardshuffle=False).decode("rgb8"))
    index = pq.read_table(packed / "train/index.parquet")
    assert [sample["__key__"] for sample in samples] == index["key"].to_pylist()
    assert [sample["cls"] for sample in samples] == index["label"].to_pylist()
    with tarfile.open(shards[0]) as tar:
        assert tar.getnames()[0] == f"{index['key'][0]}.jpg"


def test_the_order_is_shuffled_by_the_seed(
    photo_folder: Path, packed: Path, tmp_path: Path
) -> None:
    keys = pq.read_table(packed / "train/index.parquet")["key"].to_pylist()
    assert keys != sorted(keys)
    _optimize(photo_folder, tmp_path / "other", "seed=1")
    other = pq.read_table(tmp_path / "other/train/index.parquet")["key"].to_pylist()
    assert other != keys and sorted(other) == sorted(keys)


def test_files_of_every_kind_are_packed_or_listed_with_the_reason(
    photo_folder: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source"
    shutil.copytree(photo_folder / "train/cat", source / "train/cat")
    shutil.copytree(photo_folder / "train/china", source / "train/china")
    photo = Image.open(photo_folder / "train/cat/000.jpg").convert("RGB")
    for suffix in ("png", "webp", "bmp", "tiff"):
        photo.save(source / f"train/cat/photo_{suffix}.{suffix}")
    (source / "train/cat/notes.txt").write_text("no picture")
    (source / "train/cat/empty.jpg").write_bytes(b"")
    cut = (photo_folder / "train/cat/001.jpg").read_bytes()
    (source / "train/cat/cut.jpg").write_bytes(cut[: len(cut) // 2])
    (source / "train/china/copy.jpg").write_bytes(cut)
    assert _optimize(source, tmp_path / "packed") == 0
    report = json.loads((tmp_path / "packed/report.json").read_text())
    split = report["splits"]["train"]
    assert split["files"] == 6 + 6 + 4 + 3 + 1
    assert split["how"] == {"indexed": 13, "converted": 4}
    reasons = {entry["path"]: entry["reason"] for entry in split["rejected"]}
    assert "no image by its name" in reasons.pop("train/cat/notes.txt")
    assert reasons.pop("train/cat/empty.jpg") == "empty file"
    assert "truncated" in reasons.pop("train/cat/cut.jpg")
    assert not reasons
    assert split["classes"] == {"cat": 10, "china": 7}
    assert report["duplicates"]["files"] == 1
    assert report["duplicates"]["examples"] == [["train/cat/001", "train/china/copy"]]


def test_shrinking_keeps_small_images_as_they_are(photo_folder: Path, tmp_path: Path) -> None:
    assert _optimize(photo_folder, tmp_path / "packed", "max_side=400") == 0
    index = pq.read_table(tmp_path / "packed/train/index.parquet")
    assert max(index["height"].to_pylist() + index["width"].to_pylist()) == 400
    counts = json.loads((tmp_path / "packed/report.json").read_text())["splits"]["train"]["how"]
    assert counts["shrunk"] > 5 and counts["indexed"] > 5


def test_plain_files_can_be_written_instead(photo_folder: Path, tmp_path: Path) -> None:
    assert _optimize(photo_folder, tmp_path / "packed", "output_format=folder") == 0
    source = open_source(DataConfig(root=str(tmp_path / "packed")), "train", tmp_path)
    assert len(source) == 48
    assert check_dataset([f"root={tmp_path / 'packed'}"]) == 0


def test_a_killed_run_ends_with_the_same_bytes(
    photo_folder: Path, packed: Path, tmp_path: Path
) -> None:
    output = tmp_path / "data"
    for finished in (1, 3):
        process = subprocess.Popen(
            _command(photo_folder, output), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while len(list(tmp_path.glob(".data.unfinished/.records/*.json"))) < finished:
            assert process.poll() is None
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        assert not output.exists()
    records = {
        file: file.stat().st_mtime_ns for file in tmp_path.glob(".data.unfinished/.records/*.json")
    }
    assert records
    assert _optimize(photo_folder, output) == 0
    assert _contents(output) == _contents(packed)
    assert [file.name for file in tmp_path.iterdir() if "unfinished" in file.name] == []


def test_a_full_disk_leaves_nothing_under_the_final_name_and_is_gone_on_from(
    photo_folder: Path, packed: Path, tmp_path: Path
) -> None:
    """A limit on file sizes stands for the full disk: the same error from the same call."""
    job = subprocess.run(
        _command(photo_folder, tmp_path / "data"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert job.returncode == 1
    assert "no space left" in job.stdout and "Traceback" not in job.stderr
    assert not (tmp_path / "data").exists()
    assert _optimize(photo_folder, tmp_path / "data") == 0
    assert _contents(tmp_path / "data") == _contents(packed)


def test_packing_again_does_nothing_and_other_options_are_an_error(
    photo_folder: Path, packed: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = _contents(packed)
    assert _optimize(photo_folder, packed) == 0
    assert _optimize(photo_folder, packed, "interval=8") == 1
    assert "made from other files or with other options" in caplog.text
    assert _contents(packed) == before


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "there is no such folder"),
        (["other/a/1.jpg"], "neither of the folders train, val"),
        (["train/a/1.jpg", "train/b/.keep"], "b is empty"),
        (["train/a/1.jpg", "val/b/1.jpg"], "differ: a, b"),
        (["train/a/1.jpg", "train/a/1.png"], "share the key a/1"),
        (["train/a/x.y.jpg", "train/a/x_y.jpg"], "share the key a/x_y"),
    ],
)
def test_a_source_that_cannot_be_packed_says_why(
    tmp_path: Path, files: list[str], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    for name in files:
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / name).write_bytes(name.encode())
    assert _optimize(tmp_path / "source", tmp_path / "packed") == 1
    assert message in caplog.text
    assert not (tmp_path / "packed").exists()


def _samples(root: Path, split: str) -> dict[str, tuple[int, bytes]]:
    source = open_source(DataConfig(format="shards", root=str(root)), split, root)
    return {
        source.key(i).split(": ")[1]: (int(source.labels[i]), bytes(source.read(i).numpy()))
        for i in range(len(source))
    }


def test_two_hosts_on_disjoint_halves_make_the_data_set_of_one(
    photo_folder: Path, packed: Path, tmp_path: Path
) -> None:
    """As Processing runs it: each host sees its S3 keys and writes its part; then a merge."""
    (tmp_path / "classes.txt").write_text("\n".join(read_description(packed).classes))
    files = sorted(file for file in photo_folder.rglob("*.jpg"))
    for host in range(2):
        root = tmp_path / f"host-{host}"
        for file in files[host::2]:
            target = root / "input" / file.relative_to(photo_folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, target)
        contract = tmp_path / f"resourceconfig-{host}.json"
        hosts = {"current_host": f"algo-{host + 1}", "hosts": ["algo-1", "algo-2"]}
        contract.write_text(json.dumps(hosts))
        config = OptimizeConfig(classes=str(tmp_path / "classes.txt"), shard_mb=0.5)
        run(config, root, contract)
    parts = [str(tmp_path / f"host-{host}/output/part-{host:02d}") for host in range(2)]
    assert optimize([f"merge=[{','.join(parts)}]", f"output={tmp_path / 'all'}"]) == 0
    for split in ("train", "val"):
        assert _samples(tmp_path / "all", split) == _samples(packed, split)
    assert check_dataset([f"root={tmp_path / 'all'}"]) == 0


def test_the_same_files_in_two_parts_are_an_error(
    photo_folder: Path, packed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert _optimize(photo_folder, tmp_path / "again", "part=1") == 0
    assert optimize([f"merge=[{packed},{tmp_path / 'again'}]", f"output={tmp_path / 'all'}"]) == 1
    assert "48 keys of train are in more than one part" in caplog.text
    assert not (tmp_path / "all").exists()


def _damaged_copy(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed, tmp_path / "copy"))


def test_checking_finds_nothing_wrong_with_what_packing_wrote(packed: Path) -> None:
    assert check_dataset([f"root={packed}"]) == 0


def test_checking_finds_one_flipped_bit(
    packed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = _damaged_copy(packed, tmp_path)
    index = pq.read_table(root / "train/index.parquet")
    shard = root / "train" / read_description(root).splits["train"].shards[0].file
    data = bytearray(shard.read_bytes())
    data[index["offset"][0].as_py() + index["length"][0].as_py() // 2] ^= 1
    shard.write_bytes(data)
    assert check_dataset([f"root={root}"]) == 1
    assert f"{index['key'][0]}.jpg: checksum differs" in caplog.text


def test_checking_finds_a_wrong_label_file(
    packed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = _damaged_copy(packed, tmp_path)
    shard = root / "val" / read_description(root).splits["val"].shards[0].file
    with tarfile.open(shard) as tar:
        member = tar.getmembers()[1]
    data = bytearray(shard.read_bytes())
    data[member.offset_data] = ord("7") if data[member.offset_data] != ord("7") else ord("6")
    shard.write_bytes(data)
    assert check_dataset([f"root={root}"]) == 1
    assert "its .cls is not the index's label" in caplog.text


@pytest.mark.parametrize("damage", ["missing", "short"])
def test_a_missing_or_short_shard_is_named(
    packed: Path, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    root = _damaged_copy(packed, tmp_path)
    shard = sorted((root / "train").glob("*.tar"))[1]
    data = shard.read_bytes()
    shard.unlink()
    if damage == "short":
        shard.write_bytes(data[:-1000])
    with pytest.raises(DataError, match=f"{shard.name} .*copy it again"):
        open_source(DataConfig(format="shards", root=str(root)), "train", root)
    assert check_dataset([f"root={root}"]) == 1
    assert shard.name in caplog.text


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("train/index.parquet", b"PAR1 no more", "index.parquet is damaged"),
        ("dataset.json", b"{", "dataset.json is damaged"),
        ("dataset.json", b'{"version": 99}', "is of version 99"),
    ],
)
def test_a_damaged_index_or_description_is_named(
    packed: Path, tmp_path: Path, file: str, content: bytes, message: str
) -> None:
    root = _damaged_copy(packed, tmp_path)
    (root / file).write_bytes(content)
    with pytest.raises(DataError, match=message):
        open_source(DataConfig(format="shards", root=str(root)), "train", root)


def test_a_label_outside_the_class_list_is_named(packed: Path, tmp_path: Path) -> None:
    root = _damaged_copy(packed, tmp_path)
    description = json.loads((root / "dataset.json").read_text())
    description["classes"] = description["classes"][:3]
    (root / "dataset.json").write_text(json.dumps(description))
    with pytest.raises(DataError, match=r"\.jpg has label \d+, but .* has only 3 classes"):
        open_source(DataConfig(format="shards", root=str(root)), "train", root)


def test_listing_more_files_takes_no_more_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "_AT_ONCE", 64)
    peaks = []
    for classes in (8, 32):
        names = [f"class{number:02d}" for number in range(classes)]
        for name in names:
            folder = tmp_path / str(classes) / "train" / name
            folder.mkdir(parents=True)
            for number in range(100):
                (folder / f"{number:04d}.jpg").touch()
        tracemalloc.start()
        with closing(listing.Listing(tmp_path / "list", seed=0, shard_bytes=1e9)) as found:
            found.add(tmp_path / str(classes), "train", names, whole=True)
            peaks.append(tracemalloc.get_traced_memory()[1])
            assert len(found) == 100 * classes and found.shards("train") == 1
            keys = {entry.key for entry in found.entries("train", 0)}
        tracemalloc.stop()
        assert len(keys) == 100 * classes
    assert peaks[1] < 1.5 * peaks[0]


def test_a_split_of_which_every_file_is_rejected_is_packed_empty(
    photo_folder: Path, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(photo_folder, tmp_path / "root"))
    for file in (root / "val").rglob("*.jpg"):
        file.write_text("no image")
    assert optimize([f"source={root}", f"output={tmp_path / 'packed'}"]) == 0
    assert read_description(tmp_path / "packed").splits["val"].samples == 0
