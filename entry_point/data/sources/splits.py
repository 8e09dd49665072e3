"""Decides which images of a dataset are `train`, `val` and `test`, for all readers.

A reader provides a word for each image, from a folder, a column or the name of a file. If no word
names a split, a hash of the images' names chooses those for validation, a share of each class.
"""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from entry_point.data.errors import DataError
from entry_point.data.plan.philox import philox, unit
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.dataset_description import SPLITS
from entry_point.data.sources.rows import PathList, Words
from entry_point.job.text import counted, printable

WHOLE = "all"
"""The split of a dataset in which nothing tells splits; also stands for all splits together."""
VAL_FRACTION = 0.1
"""Default share of `val` in a dataset without splits."""
SPLIT_OF = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev", "eval"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""Splits by the names of folders, tables and files, in lower case."""
_HASH_STREAM = 41


def split_named(word: str) -> str | None:
    """Returns the split that a word names; it is the name of a folder, or a cell of a table."""
    return SPLIT_OF.get(word.strip().lower())


def splits_named(names: Collection[str]) -> dict[str, str]:
    """Returns the splits of those folders or files that are named as one.

    If no name is `train`, or `train` is the only split although all names contain a split's word,
    then these words count, if they name two splits and one is `train`: seg_train and seg_test, or
    train and test1.
    """
    found = {name: split for name in names if (split := split_named(name))}
    words, _ = words_of_files(names, skip=False)
    by_word = {name: word for name, word in words.items() if word}
    is_exact = "train" in found.values() and (len(found) > 1 or len(by_word) < len(names))
    is_by_word = "train" in by_word.values() and len({*by_word.values()}) > 1
    return by_word if is_by_word and not is_exact else found


def words_of_files(files: Collection[str], skip: bool) -> tuple[dict[str, str], dict[str, int]]:
    """Returns the split that each file's path names, or "", and the number of files left out.

    The last word of a path that names a split counts. With `skip`, files of no split are left out
    if others are of one.
    """
    words = dict[str, str]()
    for file in files:
        found = re.findall(r"[a-z]+", file.lower())
        words[file] = next((SPLIT_OF[word] for word in reversed(found) if word in SPLIT_OF), "")
    if not skip or not any(words.values()) or all(words.values()):
        return words, {}
    used = {file: word for file, word in words.items() if word}
    return used, {"": len(words) - len(used)}


@dataclass(frozen=True)
class Splits:
    """The images of each split, ascending, and how that was decided."""

    rows: dict[str, Ints]
    how: str
    unused: str = ""
    """Text on the images of no split, with their words; empty if there are none."""

    def describe(self) -> str:
        """Returns a text such as "300 images for train, 40 for val (by the folders)"."""
        if [*self.rows] == [WHOLE]:
            return f"{counted(len(self.rows[WHOLE]), 'image')} ({self.how})"
        numbers = {split: len(rows) for split, rows in self.rows.items()}
        first, *others = numbers.items()
        counts = [f"{counted(first[1], 'image')} for {first[0]}"]
        counts += [f"{number} for {split}" for split, number in others]
        return f"{', '.join(counts)} ({self.how}){self.unused}"


def named(words: Words) -> Splits:
    """Returns the splits that the words name; all images are one split if there are no words."""
    if not any(words.words) and not words.left_out:
        return Splits({WHOLE: np.arange(len(words.of))}, "no splits")
    place = np.array([SPLITS.index(word) if word in SPLITS else -1 for word in words.words])[
        words.of
    ]
    rows = {split: np.flatnonzero(place == number) for number, split in enumerate(SPLITS)}
    used = {split: found for split, found in rows.items() if len(found)}
    left_out = Counter(words.left_out)
    left_out.update(words.words[number] for number in words.of[place < 0].tolist())
    unused = ", ".join(
        f"{count} {f'of split {printable(repr(word))}' if word else 'of no split'}"
        for word, count in left_out.most_common(9)
    )
    return Splits(used, f"by {words.told_by}", f"; not used: {unused}" if unused else "")


def divided(
    splits: Splits,
    names: PathList,
    fraction: float | None,
    where: str,
    classes: Ints | None = None,
    *,
    of_part: bool,
) -> Splits:
    """Returns the splits for training: if the dataset has no `val`, a `fraction` becomes `val`.

    It is taken from `train`, or from all images if nothing tells splits, then a tenth by default;
    with `classes`, from each class. `names` and `classes` have an entry per image; messages name
    the dataset `where`. With `of_part`, which holds only a part of the files, a split may be empty.
    Raises DataError.
    """
    if "val" in splits.rows and fraction is not None:
        raise DataError(
            f"data.val_fraction={fraction}: {where} has images for val, {splits.how}; remove one "
            "of them"
        )
    pool = next((split for split in (WHOLE, "train") if split in splits.rows), None)
    if pool is None or "val" in splits.rows or (pool == "train" and fraction is None):
        return splits
    fraction = VAL_FRACTION if fraction is None else fraction
    rows = splits.rows[pool]
    is_val = chosen_for_val(names.only(rows), fraction, None if classes is None else classes[rows])
    found = {"train": rows[~is_val], "val": rows[is_val]}
    for split in () if of_part else found:
        if not len(found[split]):
            raise DataError(f"data.val_fraction={fraction:g} leaves no image for {split}: {where}")
    found |= {split: others for split, others in splits.rows.items() if split != pool}
    how = f"val by a hash of the paths, val_fraction={fraction:g}"
    if classes is not None:
        how += " of each class"
    if pool == "train":
        how = f"{splits.how}; {how} of train"
    return Splits({split: part for split, part in found.items() if len(part)}, how, splits.unused)


def chosen_for_val(
    paths: Iterable[str], fraction: float, classes: Ints | None = None
) -> NDArray[np.bool_]:
    """Returns whether each image is in `val`: if the hash of its path is below `fraction`.

    This is the same on every machine, and adding images moves no others. With `classes`, the class
    of each image, classes below their share also get their next lowest hashes, see `_topped_up`.
    Then adding an image may move another one of its class.
    """
    if isinstance(paths, PathList):
        names = paths.encoded()
    else:
        names = [path.encode("utf-8", "surrogateescape") for path in paths]
    checksums = np.fromiter(map(zlib.crc32, names), np.uint64, len(names))
    hashes = philox((0, _HASH_STREAM), (checksums, 0, 0, 0))[0]
    is_val = unit(hashes) < fraction
    return is_val if classes is None else _topped_up(is_val, fraction, classes, hashes, names)


def _topped_up(
    is_val: NDArray[np.bool_],
    fraction: float,
    classes: Ints,
    hashes: NDArray[np.uint64],
    names: Sequence[bytes],
) -> NDArray[np.bool_]:
    """Returns `is_val` with at least a share of each class, the images of its lowest hashes.

    The share is `fraction` of the class's images, rounded (a half up), but at least one image, and
    never all: the only image of a class is not added. Names decide between equal hashes.
    """
    images = np.bincount(classes)
    share = np.minimum(np.maximum(np.floor(images * fraction + 0.5), 1), images - 1)
    lacking = share - np.bincount(classes[is_val], minlength=len(images))
    rows = np.flatnonzero(~is_val & (lacking > 0)[classes])
    rows = rows[np.lexsort((hashes[rows], classes[rows]))]
    equal = (np.diff(hashes[rows]) == 0) & (np.diff(classes[rows]) == 0)
    tied = np.flatnonzero(np.append(equal, False) | np.append(False, equal))
    rows[tied] = sorted(rows[tied], key=lambda row: (classes[row], hashes[row], names[row]))
    of = classes[rows]
    place = np.arange(len(rows)) - np.searchsorted(of, of)
    is_val[rows[place < lacking[of]]] = True
    return is_val
