"""The side indexes of a folder of images that stays as it is: its file `jpeg-index.safetensors`.

It is an index file whose keys are the images' paths below the folder. The operator compares an
index with its image, so it needs no time or size of a file.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from entry_point.data.errors import DataError
from entry_point.data.sources.class_folders import FOLDER_INDEX
from entry_point.data.sources.index_file import SIDE_LENGTH, SIDE_OFFSET, IndexFile, SideIndexes

_CONSEQUENCE = (
    "decode without a side index, slower and to the same pixels; `make dataset "
    'ARGS="source=FOLDER output_format=index"` makes the indexes again'
)

log = logging.getLogger(__name__)


def index_holder(index_root: Path | None, root: Path, key: str = "data.index_root") -> Path | None:
    """The folder that holds the index of images below `root`; None if there is none.

    Raises DataError if `index_root`, the setting `key`, is given and holds none.
    """
    holder = index_root or root
    if (holder / FOLDER_INDEX).exists():
        return holder
    if index_root is None:
        return None
    raise DataError(
        f"{key}={index_root}: holds no {FOLDER_INDEX}; make it with "
        f'`make dataset ARGS="source={root} output={index_root} output_format=index"`'
    )


def find_side_indexes(holder: Path, paths: Sequence[str]) -> SideIndexes | None:
    """As `look_up`, with a warning that counts the images without one; None if there are none."""
    try:
        found, new = look_up(holder, paths)
    except (OSError, DataError) as error:
        log.warning("%s; %d images %s", error, len(paths), _CONSEQUENCE)
        return None
    if new:
        file = holder / FOLDER_INDEX
        log.warning("%s: %d of %d images are new: they %s", file, new, len(paths), _CONSEQUENCE)
    return found if found.lengths.any() else None


def look_up(holder: Path, paths: Sequence[str]) -> tuple[SideIndexes, int]:
    """The side indexes that the folder `holder` has for these paths; how many are not in it.

    Raises OSError or DataError if the folder's index is damaged.
    """
    file = holder / FOLDER_INDEX
    index = IndexFile(file, {}, mapped=False)
    none = len(index)
    rows = {key: row for row, key in enumerate(index.keys())}
    places = np.array([rows.get(os.fsencode(path), none) for path in paths], np.int64)
    offsets, lengths = (np.append(index[name], 0)[places] for name in (SIDE_OFFSET, SIDE_LENGTH))
    return SideIndexes([file], offsets, lengths), int((places == none).sum())
