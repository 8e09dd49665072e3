"""Finds the samples in a tar file that others have written, and refuses a damaged file.

Samples are as the `webdataset` package writes them: a member's key is its name up to the first dot;
one member of a key is an image, and one of .cls, .txt or .json holds its label. Members of a key
need not be adjacent, as `tar -cf` writes them; a second member of the same name starts another
sample.

Python's tarfile takes a damaged header, or the end of a truncated file, for the end of the archive:
samples would silently be missing. This reader supports POSIX's ustar and pax formats and GNU's long
names, https://www.gnu.org/software/tar/manual/html_node/Standard.html, and refuses all others.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import os
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import NamedTuple

from entry_point.data.errors import DataError
from entry_point.data.retries import with_retries
from entry_point.data.sources.archives import unpacking
from entry_point.data.sources.file_bytes import opened
from entry_point.data.sources.folder import conversion_advice
from entry_point.data.sources.rows import IMAGE_SUFFIXES, LABEL_NAMES
from entry_point.job.text import printable

log = logging.getLogger(__name__)

LABELS = ("cls", "txt", "json")
"""Suffixes of labels: the first that a sample has is read."""
MOST_LABEL_BYTES = 1 << 20

_BLOCK = 512
_ZEROS = bytes(_BLOCK)
_WINDOW = 1 << 13
"""Number of bytes per read: usually a label with its header, and the next header."""
_CHUNK = 1 << 20
_MOST_NAME_BYTES = 1 << 20
"""Largest header that holds the name of the next member."""
_MOST_LINKS = 40
"""Most links in a chain, as in Linux."""

_FILE, _LINK, _SYMLINK, _WITHOUT_DATA, _EXTENSIONS = b"0\x007", b"1", b"2", b"3456", b"xgLK"
"""Types of members; extensions describe the members that follow."""
_NOT_READ = b"SM"
"""Types of members that are refused: sparse files, and parts of files."""
_METADATA = re.compile("__[^/]*__($|/)")
"""Names of members that are no samples, as in the `webdataset` package; ours is
`__side_index__`."""
_RECORD = re.compile(rb"([0-9]{1,7}) ([^=]+)=")
"""The beginning of a record in a pax header, "LENGTH FIELD=VALUE\n"."""
_UNPACK = {
    b"\x1f\x8b": ("gzip", "gunzip"),
    b"BZh": ("bzip2", "bunzip2"),
    b"\xfd7zXZ\0": ("xz", "unxz"),
    b"\x28\xb5\x2f\xfd": ("Zstandard", "unzstd"),
}


class TarSample(NamedTuple):
    name: str
    """Name of the image's member."""
    offset: int
    length: int
    label: str | list[str]
    """The label, or labels; empty if labels are not read."""


class _Member(NamedTuple):
    name: str
    offset: int
    """Offset of its bytes; -1 for a link to a member that is not in the tar file."""
    length: int = 0
    link: str = ""
    """The target of a link, as a path from the top of the tar file."""
    is_hard: bool = False


def read_samples(file: str, labeled: bool) -> list[TarSample]:
    """Returns the samples in the order of their first members; without labels, all images.

    Links are replaced by their targets. Raises DataError for a file that is truncated, damaged,
    compressed, or without members, and for a sample without exactly one image and a label; OSError,
    also for a pipe or device; ReadError, see `with_retries`.
    """
    return with_retries(_read_samples, file, labeled)


def _read_samples(file: str, labeled: bool) -> list[TarSample]:
    samples, others = list[TarSample](), Counter[str]()
    with opened(file) as descriptor:
        tar = _TarFile(file, descriptor)
        groups = _grouped(_with_links_followed(tar.members()))
        for key, group in groups:
            images = [suffix for suffix in group if f".{suffix}".endswith(IMAGE_SUFFIXES)]
            label = next((suffix for suffix in LABELS if suffix in group), None)
            if not images:
                others.update(list(group))  # a list, as a Counter would add the values of a dict
            elif not labeled:
                samples += (TarSample(*_place(file, group[image]), "") for image in images)
            elif len(images) > 1 or label is None:
                _refuse_class_folders(file, groups)
                raise DataError(f"{file}: {_incomplete(key, group, images, label, groups)}")
            else:
                image = _place(file, group[images[0]])
                samples.append(TarSample(*image, _read_label(tar, group[label])))
    if others:
        found = ", ".join(f"{count} .{printable(name)}" for name, count in others.most_common(5))
        ways = conversion_advice([f".{name}" for name in others])
        log.warning("%s: members without an image are ignored: %s%s", file, found, ways)
    return samples


# -- samples


def _grouped(members: list[_Member]) -> list[tuple[str, dict[str, _Member]]]:
    """Returns the key of each sample, and its members by their suffixes after the key."""
    groups, open_groups = list[tuple[str, dict[str, _Member]]](), dict[str, dict[str, _Member]]()
    for member in members:
        folder, slash, name = member.name.rpartition("/")
        if not name or name.startswith("."):  # macOS adds `._NAME` beside each NAME
            continue
        if _METADATA.match(member.name):
            continue
        stem, _, suffix = name.partition(".")
        key, suffix = folder + slash + stem, suffix.lower()
        group = open_groups.get(key)
        if group is None or suffix in group:
            group = open_groups[key] = {}
            groups.append((key, group))
        group[suffix] = member
    return groups


def _refuse_class_folders(file: str, groups: list[tuple[str, dict[str, _Member]]]) -> None:
    """Raise DataError if a tar file is no WebDataset: no member is a label, and images are in
    folders."""
    folders = list(dict.fromkeys(dirname(key) for key, _ in groups))
    if all(folders) and not any(label in group for _, group in groups for label in LABELS):
        command, folder = unpacking(Path(file))
        raise DataError(
            f"{file} holds folders ({printable(', '.join(folders[:3]))}) and no labels, so it is "
            f"no WebDataset: unpack it, `{command}`, and set data.root={folder}"
        )


def _incomplete(
    key: str,
    group: dict[str, _Member],
    images: list[str],
    label: str | None,
    groups: list[tuple[str, dict[str, _Member]]],
) -> str:
    members = ", ".join(f".{printable(suffix)}" for suffix in sorted(group)[:5])
    reason = f"has no label: none of .{', .'.join(LABELS)}, only {members}"
    if label is not None:
        reason = f"has {len(images)} images: {members}"
    if any("." in suffix for suffix in group):
        reason += "; the key of a sample ends at the first dot of its name: rename these members"
    if sum(other == key for other, _ in groups) > 1:
        reason += "; several samples have this key: give each its own"
    return f"the sample {printable(key)} {reason}"


def _place(file: str, member: _Member) -> tuple[str, int, int]:
    """Returns name, offset and length. Raises DataError for a link without a target."""
    if member.offset < 0:
        raise DataError(
            f"{file}: {printable(member.name)} is a link to {printable(member.link)}, which is "
            "not exactly one file of this tar file: make it again with tar --dereference"
        )
    return member[:3]


def _with_links_followed(members: list[_Member]) -> list[_Member]:
    """Replaces links by their targets: hard links name an earlier member, symbolic links any."""
    if not any(member.link for member in members):
        return members
    by_path, repeated = dict[str, _Member](), set[str]()
    for place, member in enumerate(members):
        path = normpath(member.name)
        if member.is_hard and member.link in by_path:
            members[place] = member = by_path[member.link]._replace(name=member.name)
        if path in by_path:
            repeated.add(path)
        by_path[path] = member
    for place, member in enumerate(members):
        target, steps = member, 0
        while target.link and target.link in by_path and steps < _MOST_LINKS:
            if target.link in repeated:  # ambiguous, as several members have the name
                break
            target, steps = by_path[target.link], steps + 1
        if member.link and not target.link:
            members[place] = target._replace(name=member.name)
    return members


def _read_label(tar: _TarFile, member: _Member) -> str | list[str]:
    """Returns one label, or a list of them. Raises DataError, which names the member."""
    name, offset, length = _place(tar.file, member)
    where = f"{tar.file}: {printable(name)}"
    if length > MOST_LABEL_BYTES:
        raise DataError(f"{where}: has {length} bytes: a label may have at most {MOST_LABEL_BYTES}")
    content = tar.read(offset, length)
    try:
        text = content.decode().strip()
        if not name.lower().endswith(".json"):
            return text
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: cannot be read: {error}") from error
    if isinstance(found, dict):
        keys = [key for key in LABEL_NAMES if key in found]
        if not keys:
            message = f"must hold one of {', '.join(LABEL_NAMES)}"
            raise DataError(
                f"{where}: holds {', '.join(map(printable, found)) or 'nothing'}: {message}"
            )
        found = found[keys[0]]
    labels = found if isinstance(found, list) else [found]
    for label in labels:
        if type(label) not in (str, int, float) or (
            isinstance(label, float) and not math.isfinite(label)
        ):
            raise DataError(f"{where}: the label must be a text, a number, or a list of these")
    texts = [str(label) for label in labels]
    return texts if isinstance(found, list) else texts[0]


# -- the format


class _TarFile:
    """Reads the members of a tar file; raises DataError for anything that is not well-formed."""

    def __init__(self, file: str, descriptor: int) -> None:
        self.file, self._descriptor = file, descriptor
        self._size = os.fstat(descriptor).st_size
        self._start, self._window = 0, b""

    def read(self, offset: int, length: int) -> bytes:
        """Returns bytes of the file. Raises OSError if it became shorter."""
        start = offset - self._start
        if start < 0 or start + length > len(self._window):
            wanted = min(max(length, _WINDOW), self._size - offset)
            window = os.pread(self._descriptor, wanted, offset)
            while len(window) < wanted:  # a read may return fewer bytes than requested
                more = os.pread(self._descriptor, wanted - len(window), offset + len(window))
                if not more:
                    raise OSError(errno.EIO, "it ended before its size", self.file)
                window += more
            self._start, self._window, start = offset, window, 0
        return self._window[start : start + length]

    def members(self) -> list[_Member]:
        """Returns the files and the links, in their order."""
        members, offset, is_extended = list[_Member](), 0, False
        for_all, for_next = dict[str, str](), dict[str, str]()
        while (header := self._block(offset)) != _ZEROS:
            if sum(header) - sum(header[148:156]) + 8 * ord(" ") != _number(header[148:156]):
                raise self._damaged(offset)
            kind, data = header[156:157], offset + _BLOCK
            fields = {**for_all, **for_next} if for_all else for_next
            size = self._length(offset, header, fields)
            offset = data + -(-size // _BLOCK) * _BLOCK
            if kind in _EXTENSIONS:
                target = for_all if kind == b"g" else for_next
                target.update(self._extension(kind, data, size))
                is_extended = kind != b"g"
                continue
            name = fields.get("path") or _name_in(header)
            if kind in _NOT_READ or "\0" in name:
                raise self._damaged(data)
            if kind in _FILE:
                members.append(_Member(name, data, size))
            elif kind in _LINK + _SYMLINK:
                link = fields.get("linkpath") or _text(header[157:257])
                if "\0" in link:
                    raise self._damaged(data)
                start = "" if kind == _LINK else dirname(name)
                path = normpath(join(start, link))
                members.append(_Member(name, -1, link=path, is_hard=kind == _LINK))
            for_next, is_extended = {}, False
        if is_extended:
            raise self._damaged(offset)
        self._require_zeros(offset)
        if not offset:
            raise DataError(f"{self.file} holds no samples, only zeros: copy it again or remove it")
        return members

    def _length(self, offset: int, header: bytes, fields: dict[str, str]) -> int:
        """Returns the length of the member's bytes in this file."""
        kind, size = header[156:157], _number(header[124:136])
        if kind in _LINK + _SYMLINK + _WITHOUT_DATA:
            return 0  # tar and tarfile also ignore their sizes
        if fields.get("size") and kind not in _EXTENSIONS:
            size = int(fields["size"]) if re.fullmatch("[0-9]{1,20}", fields["size"]) else -1
        if not 0 <= size <= self._size - offset - _BLOCK:
            raise self._damaged(offset)
        return size

    def _block(self, offset: int) -> bytes:
        if offset + _BLOCK > self._size:
            raise self._damaged(offset)
        return self.read(offset, _BLOCK)

    def _require_zeros(self, offset: int) -> None:
        """Raise DataError unless all bytes after the end-of-archive block are zero."""
        for start in range(offset, self._size, _CHUNK):
            rest = self.read(start, min(_CHUNK, self._size - start))
            if rest != bytes(len(rest)):
                raise self._damaged(start + len(rest) - len(rest.lstrip(b"\0")))

    def _extension(self, kind: bytes, offset: int, size: int) -> Iterator[tuple[str, str]]:
        """Yields the fields in a header of a name, or of pax records, for the next members."""
        if size > _MOST_NAME_BYTES:
            raise self._damaged(offset)
        content = self.read(offset, size)
        if kind in b"LK":
            field = "path" if kind == b"L" else "linkpath"
            yield field, content.rstrip(b"\0").decode(errors="surrogateescape")
            return
        start = 0
        while start < size:
            found = _RECORD.match(content, start)
            end = start + int(found[1]) if found else 0
            if not found or not found.end() < end <= size or content[end - 1] != ord("\n"):
                raise self._damaged(offset)
            if found[2].startswith(b"GNU.sparse."):  # the size differs from that of the content
                raise self._damaged(offset)
            if found[2] in (b"path", b"linkpath", b"size"):
                value = content[found.end() : end - 1]
                yield found[2].decode(), value.decode(errors="surrogateescape")
            start = end

    def _damaged(self, offset: int) -> DataError:
        start = self.read(0, min(6, self._size))
        for magic, (name, program) in _UNPACK.items():
            if not offset and start.startswith(magic):
                return DataError(
                    f"{self.file} is compressed with {name}: replace it by the output of "
                    f"`{program} < {shlex.quote(self.file)}`"
                )
        return DataError(
            f"{self.file} is not a sound tar file from byte {offset} on: it is cut off or damaged "
            "(copy it again), or holds sparse files or several tar files (make it again)"
        )


def _number(field: bytes) -> int:
    """Returns the number in a field, octal digits or GNU's binary form; -1 if neither."""
    if field[0] & 0x80:
        if field[0] & 0x40:  # negative
            return -1
        return int.from_bytes(field, "big") & ((1 << (8 * len(field) - 1)) - 1)
    digits = field.strip(b" \0") or b"0"
    try:
        return int(digits, 8) if digits.isdigit() else -1
    except ValueError:
        return -1


def _name_in(header: bytes) -> str:
    name = _text(header[:100])
    # GNU's format has times in the place of ustar's prefix.
    prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else ""
    return f"{prefix}/{name}" if prefix else name


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode(errors="surrogateescape")
