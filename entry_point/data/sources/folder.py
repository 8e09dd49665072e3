"""Lists folders, without the files that systems create, and reads folders of plain images."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePath
from typing import NamedTuple
from unicodedata import normalize

from entry_point.data.errors import DataError
from entry_point.data.retries import with_retries
from entry_point.data.sources.dataset_description import SPLITS
from entry_point.data.sources.rows import (
    IMAGE_SUFFIXES,
    Files,
    Labels,
    PathList,
    Rows,
    Words,
)
from entry_point.data.sources.side_index_store import FOLDER_INDEX, OLD_FOLDER_INDEX
from entry_point.data.sources.splits import split_named
from entry_point.job.text import counted, printable

log = logging.getLogger(__name__)

_OF_SYSTEMS = {
    # disks of Linux, Windows and macOS
    *("lost+found", "$RECYCLE.BIN", "$Recycle.Bin", "RECYCLER", "System Volume Information"),
    *("FOUND.000", "Thumbs.db", "thumbs.db", "desktop.ini", "Desktop.ini", "Network Trash Folder"),
    *("Temporary Items", "TheVolumeSettingsFolder", "Icon\r", "__MACOSX", "__pycache__"),
    # Synology, QNAP and NetApp
    *("@eaDir", "@tmp", "@Recycle", "@Recently-Snapshot", "@sharesnap", "@SynoEAStream"),
    *("#recycle", "#snapshot", "~snapshot"),
    # this template
    *(FOLDER_INDEX, OLD_FOLDER_INDEX),
}
"""Names that disks, archives, NAS and this template create. They are left out, as are names that
begin with a dot."""
_HEIC = (".heic", ".heif", ".hif")
"""Suffixes of photos that cannot be read."""
_WAY_OUT = (
    "; HEIC is not read: convert it, `heif-convert -q 95 A.heic A.jpg` (Debian's "
    "libheif-examples) or `sips -s format jpeg A.heic --out A.jpg` (macOS)"
)


class Names(NamedTuple):
    """The names in a folder, sorted."""

    folders: list[str]
    files: list[str]

    @property
    def has_images(self) -> bool:
        """Whether the folder directly holds images."""
        return any(map(is_image, self.files))


class Tree:
    """The names below a folder, without hidden ones and those that systems create.

    Each folder is listed once, when it is first needed: on S3, a listing is a request.
    """

    def __init__(self, root: Path, known: dict[Path, Names] | None = None) -> None:
        self.root = root
        self._known = dict[Path, Names]() if known is None else known

    def below(self, name: str) -> Tree:
        """Returns the tree below one of its folders."""
        return Tree(self.root / name, self._known)

    def at(self, folder: str = "") -> Names:
        """Returns the names in a folder below the root.

        Raises DataError if it cannot be listed, and ReadError, see `with_retries`.
        """
        path = self.root / folder
        if path not in self._known:
            self._known[path] = _listed(path)
        return self._known[path]

    def leads_to_images(self, folder: str, depth: int, width: int) -> bool:
        """Returns whether there are images in a folder, or up to `depth` levels below it in the
        first `width` folders of each."""
        names = self.at(folder)
        below = names.folders[: width if depth else 0]
        return names.has_images or any(
            self.leads_to_images(f"{folder}/{name}", depth - 1, width) for name in below
        )

    def files(self, folder: str = "") -> Iterator[str]:
        """Yields the paths of all files below a folder, relative to it, sorted: a folder's files
        before those of its folders. Raises errors as `at`.

        The names are not kept, as a second copy of millions of names takes memory.
        """
        path = self.root / folder
        names = self.at(folder)
        del self._known[path]
        yield from names.files
        for name in names.folders:
            if not _is_loop(path, name):
                for file in self.files(f"{folder}/{name}" if folder else name):
                    yield f"{name}/{file}"


def list_images(tree: Tree, *_: object) -> Rows:
    """Returns all images below a folder, or a single image, without labels.

    Raises DataError.
    """
    path, names = tree.root, [tree.root.name]
    if path.is_dir():
        files = [*tree.files()]
        names = [file for file in files if is_image(file)]
        warn_of_skipped(path, [file for file in files if not is_image(file)])
    paths, folder = PathList.of_names(names), str(path if path.is_dir() else path.parent)
    none = len(names)
    return Rows("images", paths, Files(folder, paths), Labels.unknown(none), Words.none(none))


def is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_SUFFIXES)


def is_photo(name: str) -> bool:
    """Returns whether a name is that of an image, also of a format that cannot be read."""
    return name.lower().endswith((*IMAGE_SUFFIXES, *_HEIC))


def warn_of_skipped(folder: Path, names: Collection[str]) -> None:
    """Log the number of files below `folder` that are skipped, by suffix.

    Images among them are outside of class folders.
    """
    if not names:
        return
    kinds = Counter(PurePath(name).suffix.lower() or "without a suffix" for name in names)
    shown = ", ".join(
        f"{count} {printable(suffix)}{' outside of class folders' if is_image(suffix) else ''}"
        for suffix, count in kinds.most_common(9)
    )
    known = "" if all(map(is_image, kinds)) else f"; images end in {', '.join(IMAGE_SUFFIXES)}"
    log.warning(
        "%s: skipping %s: %s, for example %s%s%s",
        *(folder, counted(len(names), "file"), shown, printable(min(names)), known),
        conversion_advice(kinds),
    )


def conversion_advice(suffixes: Collection[str]) -> str:
    """Returns a text, after a semicolon, on how to convert photos of these unreadable suffixes."""
    return "" if {*_HEIC}.isdisjoint(suffixes) else _WAY_OUT


def split_folders(tree: Tree) -> dict[str, str]:
    """Returns the folder of each split below the root; empty for a root of class folders.

    Folders are splits if one is `train`, or if all are named as splits. Raises DataError for two
    folders of one split.
    """
    names = tree.at().folders
    found = {name: split for name in names if (split := split_named(name))}
    if "train" not in found.values() and len(found) < len(names):
        return {}
    return folder_of_each(tree.root, found)


def folder_of_each(root: Path, splits: Mapping[str, str]) -> dict[str, str]:
    """Inverts a mapping from folders to splits. Raises DataError for two folders of one split."""
    folders = dict[str, str]()
    for split in SPLITS:
        of_split = [name for name, word in splits.items() if word == split]
        if len(of_split) > 1:
            both = printable(" and ".join(of_split[:3]))
            raise DataError(f"{root}: {both} are both for {split}; remove or rename one")
        folders |= {split: of_split[0]} if of_split else {}
    return folders


def _listed(folder: Path) -> Names:
    try:
        return with_retries(_list, folder)
    except OSError as error:
        raise DataError(f"{error.filename} cannot be listed: {error.strerror}") from error


def _list(folder: Path) -> Names:
    names = Names([], [])
    with os.scandir(folder) as entries:
        for entry in entries:
            if not entry.name.startswith(".") and entry.name not in _OF_SYSTEMS:
                (names.folders if is_folder(entry) else names.files).append(entry.name)
    names.folders.sort()
    names.files.sort()
    return names


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Returns whether `entry` is, or links to, a folder. Raises ReadError, see `with_retries`."""
    try:
        return with_retries(entry.is_dir, name=lambda: entry.path)
    except OSError:  # a link to itself
        return False


def _is_loop(parent: Path, name: str) -> bool:
    """Returns whether the folder is a link to one of its own parents."""
    link = parent / name
    if not link.is_symlink():
        return False
    target = link.resolve()
    return any(folder.resolve() == target for folder in (parent, *parent.parents))


def folded(name: str) -> str:
    """Returns a name normalized to compare without case and Unicode form."""
    return normalize("NFC", name).casefold()
