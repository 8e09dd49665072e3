"""Archives are unpacked within a folder, with the filters of Python's tarfile and without."""

import gzip
import io
import tarfile
from pathlib import Path

import pytest

from entry_point.job.archive import unpack, unpack_file
from tests.failing_disk import without_room

KINDS = {
    "link": tarfile.SYMTYPE,
    "hard link": tarfile.LNKTYPE,
    "device": tarfile.CHRTYPE,
    "pipe": tarfile.FIFOTYPE,
}


@pytest.fixture(params=["this Python", "Python 3.11.2"])
def python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """This Python, or one as Debian 12 has it: no `filter` is known."""
    if request.param == "this Python":
        return
    for name in [name for name in vars(tarfile) if name.endswith("_filter")]:
        monkeypatch.delattr(tarfile, name)
    # Other methods than `extractfile` would look for the filters that are gone.
    for name in ("extract", "extractall"):
        monkeypatch.delattr(tarfile.TarFile, name)


def archive(*members: tuple[str, bytes | str]) -> tarfile.TarFile:
    """A tar of files with this content, or of another kind that leads to ../../secret."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            if isinstance(content, bytes):
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
            else:
                member.type, member.linkname = KINDS[content], "../../secret"
                tar.addfile(member)
    packed.seek(0)
    return tarfile.open(fileobj=packed)


@pytest.mark.usefixtures("python")
def test_files_are_unpacked_into_their_folders(tmp_path: Path) -> None:
    unpack(archive(("./config.yaml", b"a: 1"), ("code/project/net.py", b"x")), tmp_path)
    assert (tmp_path / "config.yaml").read_bytes() == b"a: 1"
    assert (tmp_path / "code/project/net.py").read_bytes() == b"x"


@pytest.mark.usefixtures("python")
@pytest.mark.parametrize(
    "member", [("../a", b"x"), ("a/../../b", b"x"), *((kind, kind) for kind in KINDS)]
)
def test_what_leaves_the_folder_and_devices_are_refused(
    member: tuple[str, bytes | str], tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(tarfile.TarError):
        unpack(archive(member), folder)
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []


@pytest.mark.usefixtures("python")
def test_a_file_named_from_the_root_is_not_written_there(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (tmp_path / "folder").mkdir()
    try:
        unpack(archive((str(outside), b"x")), tmp_path / "folder")
    except tarfile.TarError:
        pass
    assert not outside.exists()


def test_an_archive_that_unpacks_to_much_more_than_its_size_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member as well as a header, which tarfile would hold in memory."""
    monkeypatch.setattr("entry_point.job.archive._BYTES_MORE", 10**6)
    large, commented, fitting = (tarfile.TarInfo("a") for _ in range(3))
    large.size, fitting.size = 2 * 10**6, 900_000
    commented.pax_headers = {"comment": "x" * 2 * 10**6}
    file = tmp_path / "model.tar.gz"
    for member in (large, commented, fitting):
        with tarfile.open(file, "w:gz") as archive:
            archive.addfile(member, io.BytesIO(bytes(member.size)))
        if member is not fitting:
            with pytest.raises(tarfile.TarError, match="it holds more than"):
                unpack_file(file, tmp_path / "refused")
    unpack_file(file, tmp_path)
    assert (tmp_path / "a").stat().st_size == 900_000


def test_an_archive_with_a_negative_size_ends(tmp_path: Path) -> None:
    header = bytearray(tarfile.TarInfo("a").tobuf())
    header[124:136] = b"\xff" * 10 + (2**16 - 512).to_bytes(2, "big")
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    file = tmp_path / "model.tar.gz"
    file.write_bytes(gzip.compress(bytes(header) + bytes(1024)))
    with pytest.raises(tarfile.TarError):
        unpack_file(file, tmp_path)


def test_an_archive_that_does_not_fit_its_checksum_is_refused(tmp_path: Path) -> None:
    """It is at the end of a gzip file, after what tarfile reads."""
    file = tmp_path / "model.tar.gz"
    with tarfile.open(file, "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("a"))
    content = file.read_bytes()
    for changed, words in ((content[:-5], "ended before"), (content[:-8] + bytes(8), "CRC")):
        file.write_bytes(changed)
        with pytest.raises(tarfile.TarError, match=words):
            unpack_file(file, tmp_path)


@pytest.mark.usefixtures("python")
def test_a_disk_without_room_for_the_files_is_named(tmp_path: Path) -> None:
    file, folder = tmp_path / "model.tar", tmp_path / "model"
    with tarfile.open(file, "w") as tar:
        member = tarfile.TarInfo("weights")
        member.size = 5000
        tar.addfile(member, io.BytesIO(bytes(5000)))
    folder.mkdir()
    with without_room(), pytest.raises(OSError, match="File too large") as caught:
        unpack_file(file, folder)
    assert caught.value.filename == str(folder)
