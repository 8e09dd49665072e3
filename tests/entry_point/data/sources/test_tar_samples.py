"""Samples in the tar files of others: every writer's layout is read, damage is refused."""

import io
import logging
import os
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entry_point.data.errors import DataError
from entry_point.data.sources.tar_samples import TarSample, read_samples

FORMATS = (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT)
Member = tuple[str, bytes | str, dict[str, str]]
"""Name; bytes, or the target of a link: "hard TARGET" or "soft TARGET"; pax records."""


def member(name: str, content: bytes | str, **pax: str) -> Member:
    return name, content, pax


def pair(number: int) -> list[Member]:
    return [
        member(f"{number:02}.jpg", b"image %d" % number * 99),
        member(f"{number:02}.cls", b"%d" % (number % 3)),
    ]


def pairs(count: int, first: int = 0) -> list[Member]:
    return [each for number in range(first, first + count) for each in pair(number)]


def tar_of(members: list[Member], format: int = tarfile.USTAR_FORMAT) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as tar:
        for name, content, pax in members:
            info = tarfile.TarInfo(name)
            info.pax_headers = pax
            if isinstance(content, str):
                kind, _, info.linkname = content.partition(" ")
                info.type = tarfile.LNKTYPE if kind == "hard" else tarfile.SYMTYPE
                tar.addfile(info)
            else:
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def header(name: bytes, size: bytes = b"", kind: bytes = b"0") -> bytes:
    """With a valid checksum, whatever it says."""
    block = bytearray(name.ljust(124, b"\0") + size.ljust(24, b"\0") + b" " * 8 + kind)
    block = block.ljust(257, b"\0") + b"ustar\x0000"
    block = block.ljust(512, b"\0")
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def padded(content: bytes) -> bytes:
    return content.ljust(-(-len(content) // 512) * 512, b"\0")


def pax_header(kind: bytes, content: bytes) -> bytes:
    return header(b"pax", b"%o" % len(content), kind) + padded(content)


def records(**fields: str) -> bytes:
    return b"".join(
        b"%03d %b" % (len(line) + 4, line)
        for field, value in fields.items()
        for line in [f"{field.replace('__', '.')}={value}\n".encode()]
    )


def read(file: Path, content: bytes, labeled: bool = True) -> list[TarSample]:
    file.write_bytes(content)
    return read_samples(str(file), labeled)


def contents(file: Path, samples: list[TarSample]) -> list[tuple[str, bytes, object]]:
    whole = file.read_bytes()
    return [(s.name, whole[s.offset : s.offset + s.length], s.label) for s in samples]


def expected(count: int, first: int = 0) -> list[tuple[str, bytes, object]]:
    return [
        (f"{number:02}.jpg", b"image %d" % number * 99, f"{number % 3}")
        for number in range(first, first + count)
    ]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "photos.tar"


# -- sound files


@pytest.mark.parametrize("format", ["v7", "ustar", "oldgnu", "gnu --incremental", "pax"])
def test_every_format_of_gnu_tar_is_read(file: Path, tmp_path: Path, format: str) -> None:
    deep = ("d" * 90 + "/") * (1 if format in ("v7", "ustar") else 4)
    folder = tmp_path / "files" / deep
    folder.mkdir(parents=True)
    for name, content, _ in pairs(20):
        assert isinstance(content, bytes)
        (folder / name).write_bytes(content)
    command = f"tar --format={format} -cf {file} -C {tmp_path}/files {deep.partition('/')[0]}"
    subprocess.run(command.split(), check=True)  # in the disk's order
    found = sorted(contents(file, read_samples(str(file), True)))
    assert found == [(deep + name, *others) for name, *others in expected(20)]


PATHS = st.lists(
    st.text(st.characters(exclude_characters="\0/", exclude_categories=["Cs"]), min_size=1),
    max_size=3,
).map("/".join)


@given(
    st.lists(st.tuples(PATHS, st.integers(0, 2000), st.integers(0, 200)), max_size=6),
    st.sampled_from(FORMATS[1:]),
)
def test_any_archive_of_tarfile_has_the_same_members(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, int, int]], format: int
) -> None:
    names = [f"{folder}/{'n' * long}{place}.jpg" for place, (folder, _, long) in enumerate(rows)]
    names = [name.lstrip("/") for name in names]
    members = [member(name, bytes(row[1])) for name, row in zip(names, rows, strict=True)]
    file = tmp_path_factory.mktemp("any") / "photos.tar"
    file.write_bytes(tar_of([*members, member("last.jpg", b"")], format))
    with tarfile.open(file) as tar:
        right = [(each.name, each.offset_data, each.size, "") for each in tar]
    assert [tuple(sample) for sample in read_samples(str(file), False)] == right


@pytest.mark.parametrize("zeros", [512, 1024, 10240, 3 << 20])
def test_an_end_of_archive_block_of_any_length_is_sound(file: Path, zeros: int) -> None:
    whole = tar_of(pairs(3))
    end = len(padded(whole.rstrip(b"\0")))
    assert contents(file, read(file, whole[:end] + bytes(zeros))) == expected(3)


def test_binary_sizes_and_pax_records_replace_those_of_the_header(file: Path) -> None:
    binary = b"\x80" + (5).to_bytes(11, "big")
    of_next = records(path="00.cls", size="1", comment="=\n=", empty="")
    content = header(b"00.jpg", binary) + padded(b"image") + pax_header(b"x", of_next)
    content += header(b"other", b"777") + padded(b"2") + bytes(1024)
    assert contents(file, read(file, content)) == [("00.jpg", b"image", "2")]
    content = pax_header(b"g", records(size="5")) + header(b"0.jpg") + padded(b"image")
    content += header(b"1.jpg") + padded(b"other") + bytes(1024)
    found = contents(file, read(file, content, labeled=False))
    assert found == [("0.jpg", b"image", ""), ("1.jpg", b"other", "")]


# -- damaged and hostile files


DAMAGED = r"photos\.tar is not a sound tar file from byte {} on"


def refused(file: Path, content: bytes, at: str = r"\d+", labeled: bool = True) -> None:
    with pytest.raises(DataError, match=DAMAGED.format(at)):
        read(file, content, labeled)


def test_a_tar_that_is_cut_off_anywhere_is_refused(file: Path) -> None:
    whole = tar_of(pairs(3))
    end = len(padded(whole.rstrip(b"\0")))
    for length in [*range(0, end, 128), end, end + 100]:
        refused(file, whole[:length])


def header_places(content: bytes) -> Iterator[int]:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        for each in tar:
            if each.isreg():
                yield from {each.offset, each.offset_data - 512}


LONG = [member("n" * 120 + ".jpg", b"image"), member("n" * 120 + ".cls", b"1")]
WHOLE = [tar_of([*pairs(2), *([] if f == FORMATS[0] else LONG), *pairs(1, 5)], f) for f in FORMATS]


@given(st.data())
def test_any_byte_changed_in_a_header_is_refused_or_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    file = tmp_path_factory.mktemp("changed") / "photos.tar"
    whole = data.draw(st.sampled_from(WHOLE))
    right = read(file, whole)
    start = data.draw(st.sampled_from(sorted(header_places(whole))))
    at = start + data.draw(st.integers(0, 511))
    changed = bytearray(whole)
    changed[at] = data.draw(st.integers(0, 255))
    try:
        assert read(file, bytes(changed)) == right
    except DataError as error:
        assert f"{file}" in str(error)


def linked(link: str) -> bytes:
    return tar_of([*pairs(1), member("1.jpg", "soft x", linkpath=link)], tarfile.PAX_FORMAT)


THREE = tar_of(pairs(3))
SECOND = len(padded(THREE[:512] + b"image 0" * 99))
LONG_NAME = b"0.jpg\0x.jpg\0"
OF_LONG_NAME = header(b"long", b"%o" % len(LONG_NAME), b"L") + padded(LONG_NAME)
UNSOUND = {
    "nothing": b"",
    "a header of zeros": THREE[:SECOND] + bytes(512) + THREE[SECOND + 512 :],
    "two tars": THREE + bytes(10240) + tar_of(pairs(3, 3)),
    "no member for a pax header": pax_header(b"x", records(mtime="1.5")) + bytes(1024),
    "a NUL in a link": linked("00.jpg\0x"),
    "a NUL in a long name": OF_LONG_NAME + header(b"0.jpg") + bytes(1024),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_what_no_sound_writer_wrote_is_refused(file: Path, name: str) -> None:
    refused(file, UNSOUND[name], labeled=False)


def test_a_tar_of_zeros_is_empty(file: Path) -> None:
    with pytest.raises(DataError, match=r"photos\.tar holds no samples, only zeros"):
        read(file, tar_of([]))


@pytest.mark.parametrize("program", ["gzip", "bzip2", "xz", "zstd"])
def test_a_compressed_tar_names_the_program_that_unpacks_it(file: Path, program: str) -> None:
    for count in (1, 30):
        whole = tar_of(pairs(count))
        packed = subprocess.run([program, "-qc"], input=whole, stdout=-1, check=True).stdout
        with pytest.raises(DataError, match=r"is compressed with .*: replace it by") as raised:
            read(file, packed)
        command = str(raised.value).split("`")[1]
        unpacked = subprocess.run(command, shell=True, stdout=-1, check=True).stdout
        assert len(read(file, unpacked)) == count


def negative(size: int) -> bytes:
    return ((1 << 96) + size).to_bytes(12, "big")


@pytest.mark.parametrize(
    "size",
    [
        negative(-512),  # CVE-2025-8194
        *(negative(-1), b"-0000001000", b"0o17", b"1_0", b"1289"),
        *(b"\x80" + b"\xff" * 11, b"77777777777"),  # beyond the end
    ],
)
@pytest.mark.parametrize("kind", [b"0", b"x", b"g", b"L", b"Z"])
def test_sizes_that_lead_nowhere_are_refused(file: Path, size: bytes, kind: bytes) -> None:
    sound = header(b"0.cls", b"1") + padded(b"1")
    refused(file, sound + header(b"0.jpg", size, kind) + sound + bytes(1024), "1024")


@pytest.mark.parametrize(
    "content",
    [
        *(records(path="0\0x.jpg"), records(GNU__sparse__major="1")),
        *(records(size="-512"), records(size="1e3"), records(size="9" * 19)),
        *(b"999 path=0.jpg\n", b"005 path=0.jpg\n", b"000 path=0.jpg\n", b"path=0.jpg\n"),
        *(records(path="0.jpg") + b"\0", b"1" * (2 << 20)),
    ],
)
def test_pax_headers_that_mean_nothing_are_refused(file: Path, content: bytes) -> None:
    for kind in b"x", b"g":
        member = header(b"0.jpg", b"0") + bytes(1024)
        refused(file, pax_header(kind, content) + member, labeled=False)


def test_sparse_files_are_refused(file: Path, tmp_path: Path) -> None:
    with (tmp_path / "0.jpg").open("wb") as image:
        os.ftruncate(image.fileno(), 1 << 20)
        os.pwrite(image.fileno(), b"image", 1 << 19)
    for format in "gnu", "pax":
        command = ["tar", f"--format={format}", "--sparse", "-cf", str(file), "-C", str(tmp_path)]
        subprocess.run([*command, "0.jpg"], check=True)
        refused(file, file.read_bytes(), labeled=False)


def test_a_device_is_refused(file: Path) -> None:
    file.symlink_to("/dev/zero")
    with pytest.raises(OSError, match="is not a regular file"):
        read_samples(str(file), True)


# -- links


@pytest.mark.parametrize("format", FORMATS)
def test_a_link_is_the_member_that_it_names(file: Path, format: int) -> None:
    members = [
        *(member("a/00.jpg", b"image"), member("a/00.cls", b"7")),
        *(member("a/01.jpg", "hard a/00.jpg"), member("a/01.cls", "hard ./a/00.cls")),
        *(member("a/02.jpg", "soft 01.jpg"), member("a/02.cls", "soft ../b/later.cls")),
        *(member("a/03.jpg", "hard a/02.jpg"), member("a/03.cls", "hard a/02.cls")),
        member("b/later.cls", b"8"),
    ]
    found = contents(file, read(file, tar_of(members, format)))
    assert found == [(f"a/{i:02}.jpg", b"image", label) for i, label in enumerate("7788")]


@pytest.mark.parametrize(
    "link", ["hard 9.jpg", "soft 9.jpg", "soft /0.jpg", "soft ../0.jpg", "soft 1.jpg", "soft ."]
)
def test_a_link_to_nothing_is_refused(file: Path, link: str) -> None:
    members = [*pairs(1), member("1.jpg", link), member("1.cls", b"1")]
    for labeled in True, False:
        with pytest.raises(DataError, match=r"1\.jpg is a link to .*tar --dereference"):
            read(file, tar_of(members), labeled)


def test_a_hard_link_names_the_last_member_before_it(file: Path) -> None:
    """As where two tars with the same names were joined by `tar --concatenate`."""
    members = []
    for label in (b"1", b"2"):
        members += [member("0.jpg", b"image"), member("0.cls", label)]
        members += [member("1.jpg", b"image"), member("1.cls", "hard 0.cls")]
    assert [sample.label for sample in read(file, tar_of(members))] == ["1", "1", "2", "2"]
    members[3] = member("1.cls", "soft 0.cls")
    with pytest.raises(DataError, match="is not exactly one file of this tar file"):
        read(file, tar_of(members))


# -- samples


def test_members_of_a_sample_may_be_apart(file: Path) -> None:
    members = sorted(pairs(20), key=lambda each: each[0][3:])
    assert members[0][0].endswith(".cls") and members[19][0].endswith(".cls")
    assert contents(file, read(file, tar_of(members))) == expected(20)


def test_a_second_member_of_a_name_starts_another_sample(file: Path) -> None:
    assert contents(file, read(file, tar_of(pairs(3) + pairs(3)))) == expected(3) + expected(3)
    with pytest.raises(DataError, match=r"sample 00 has no label.*several samples have this key"):
        read(file, tar_of(pairs(3) + pairs(1)[:1]))


@pytest.mark.parametrize("suffixes", [("v1.jpg", "v1.cls"), ("v1.jpg", "v2.jpg", "cls")])
def test_dots_in_names_are_named(file: Path, suffixes: tuple[str, ...]) -> None:
    members = [member(f"00.{suffix}", b"1") for suffix in suffixes]
    with pytest.raises(DataError, match=r"\.v1\.jpg.*the key of a sample ends at the first dot"):
        read(file, tar_of(members))


@pytest.mark.parametrize(
    ("content", "label"),
    [
        ("1.0", "1.0"),
        ("1e-7", "1e-07"),
        ('[0.1, 2, "x"]', ["0.1", "2", "x"]),
        ('{"cls": 2, "class": -3.25}', "-3.25"),  # the order of a table's columns
        ('{"class_id": 7}', "7"),
        *((other, None) for other in ("NaN", "1e999", "true", "null", "[[1]]", '[{"label": 1}]')),
    ],
)
def test_numbers_and_texts_in_json_are_labels_and_nothing_else_is(
    file: Path, content: str, label: object
) -> None:
    tar = tar_of([member("0.jpg", b""), member("0.json", content.encode())])
    if label is not None:
        assert read(file, tar)[0].label == label
        return
    with pytest.raises(DataError, match=r"0\.json: the label must be a text, a number, or a list"):
        read(file, tar)


def test_members_without_an_image_are_told_and_hidden_ones_are_not(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    members = [member("notes.md", b""), member("._00.jpg", b""), member("a/.b.cls", b"")]
    members += [*pairs(1), member("01.cls", b"1"), member("02.heic", b"?")]
    with caplog.at_level(logging.WARNING):
        assert len(read(file, tar_of(members))) == 1
    told = "members without an image are ignored: 1 .md, 1 .cls, 1 .heic; HEIC is not read: convert"
    assert told in caplog.text
