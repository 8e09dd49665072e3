"""A disk that fails for a moment: a library, loaded before a program, whose `open` fails.

So readers written in C++ and Rust meet the error as Python does. `python -m tests.failing_disk
PHOTOGRAPHS FOLDER`, started with `preloaded`, opens and reads datasets of every kind while files of
them fail, and writes for each how many failures are left and whether it read the same; and what
a program prints of tables that cannot be read.
"""

import ctypes
import errno
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from entry_point.data import retries
from entry_point.job.program import run_program


@contextmanager
def without_room(most: int = 4096) -> Iterator[None]:
    """Limit the files that this process writes, shared memory among them, to `most` bytes, which
    stands for a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


LIBRARY = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fails(const char *path) {
  const char *end = getenv("FAILING_PATH"), *times = getenv("FAILING_TIMES");
  if (!end || !times || !path || atoi(times) <= 0 || strlen(path) < strlen(end)) return 0;
  if (strcmp(path + strlen(path) - strlen(end), end)) return 0;
  char left[12];
  snprintf(left, sizeof left, "%d", atoi(times) - 1);
  setenv("FAILING_TIMES", left, 1);
  errno = atoi(getenv("FAILING_ERROR"));
  return 1;
}

#define OPENS(name, names, values)                               \
  int name(names const char *path, int flags, ...) {             \
    static int (*real)(names const char *, int, ...);            \
    va_list more;                                                \
    va_start(more, flags);                                       \
    int mode = va_arg(more, int);                                \
    va_end(more);                                                \
    if (!real) real = dlsym(RTLD_NEXT, #name);                   \
    return fails(path) ? -1 : real(values path, flags, mode);    \
  }
#define FOLDER int folder,
#define THE_FOLDER folder,
#define NONE
OPENS(open, NONE, NONE)
OPENS(open64, NONE, NONE)
OPENS(openat, FOLDER, THE_FOLDER)
OPENS(openat64, FOLDER, THE_FOLDER)
"""


FOR_EVER = 10**6
FOUND = "found.json"
TABLES = "tables"


class Disk:
    """This process's disk: opening the file, or listing the folder, whose path has a certain end
    fails, without pauses."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.end, self.times, self.error = "", 0, errno.ESTALE
        self.met, self._open, self._scandir = threading.Event(), os.open, os.scandir
        patch.setattr(os, "open", self.open)
        patch.setattr(os, "scandir", self.scandir)
        patch.setattr(retries, "PAUSES", (0.0, 0.0, 0.0))

    def fails(self, end: str, times: int = FOR_EVER, error: int = errno.ESTALE) -> None:
        self.end, self.times, self.error = end, times, error

    def open(self, path: Any, *more: Any, **named: Any) -> int:
        self.touch(path)
        return self._open(path, *more, **named)

    def scandir(self, path: Any = ".") -> Any:
        self.touch(path)
        return self._scandir(path)

    def touch(self, path: Any) -> None:
        """Fail, if it is time."""
        if self.times and not isinstance(path, int) and os.fspath(path).endswith(self.end):
            self.times -= 1
            self.met.set()
            raise OSError(self.error, os.strerror(self.error), os.fspath(path))


def preloaded(folder: Path) -> dict[str, str]:
    """The environment of a program that has the library, which is built in `folder`."""
    source, library = folder / "failing.c", folder / "failing.so"
    source.write_text(LIBRARY)
    command = ["cc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True)
    return {**os.environ, "LD_PRELOAD": str(library), "FAILING_ERROR": str(errno.ESTALE)}


def _failures_left() -> int:
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    return int(getenv(b"FAILING_TIMES"))


def readings(photographs: Path, folder: Path) -> dict[str, tuple[str, Callable[[], Any]]]:
    """By name: the end of the path that fails, and what opens and reads a dataset."""
    from PIL import Image

    from entry_point.config.data_config import DataConfig
    from entry_point.data.loader import build_loader, open_source
    from entry_point.data.loader_spec import LoaderSpec
    from entry_point.data.sources.masks import MaskSource
    from entry_point.data.sources.source import read_image
    from tests.entry_point.data.engines.every_engine import pipeline_of
    from tests.entry_point.data.packing.pack_command import index_bytes, pack
    from tests.entry_point.data.sources.test_webdataset import write_tars
    from tests.masked_shapes import write_shapes

    tars = write_tars(photographs, folder / "tars")
    packed, beside = folder / "packed", folder / "beside"
    assert pack(photographs, packed) == 0
    assert pack(photographs, beside, "output_format=index") == 0
    masked = write_shapes(folder / "masked", train=4, val=2)
    files = sorted(photographs.rglob("*.jpg"))

    def opened(form: str, root: Path, **data: Any) -> Any:
        data = {"image_size": 32, "resize": 32, **data}
        return open_source(DataConfig(format=form, root=str(root), **data), "train", Path())

    def read(form: str, root: Path, **data: Any) -> Callable[[], Any]:
        def images() -> Any:
            source = opened(form, root, **data)
            found = [read_image(source, i).numpy().tobytes() for i in range(len(source))]
            return found, source.labels.tolist(), [*map(source.key, range(len(source)))]

        return images

    def trained(form: str, root: Path, **data: Any) -> Callable[[], Any]:
        def batches() -> Any:
            source = opened(form, root, **data)
            config = DataConfig(format=form, image_size=32, resize=32, **data)
            spec = LoaderSpec(config, pipeline_of("threads", 1), "train", 8, seed=0)
            loader = build_loader(source, spec)
            found = [batch.images.numpy().tobytes() for batch in loader.epoch(0)]
            loader.close()
            return found

        return batches

    def masks() -> Any:
        source = opened("masks", masked)
        assert isinstance(source, MaskSource)
        found = []
        for i in range(len(source)):
            with Image.open(source.path(i)) as image:
                found.append(source.mask(i, image.height, image.width).tolist())
        return source.classes, found

    def side_indexes() -> Any:
        return index_bytes(opened("folder", photographs, index_root=str(beside)))

    photograph = str(files[0].relative_to(photographs))
    shard = "train/shard-000000.tar"
    return {
        "a file": (photograph, read("folder", photographs)),
        "a tar file": ("train-000.tar", read("webdataset", tars)),
        "a description": ("dataset.json", read("shards", packed)),
        "an index": ("train/index.safetensors", read("shards", packed)),
        "a mapped shard": (shard, read("shards", packed)),
        "a shard": (shard, read("shards", packed, access="stream")),
        "a streamed shard": (shard, trained("shards", packed, access="stream")),
        "classes": ("classes.txt", masks),
        "a mask": ("train/masks/all/0.png", masks),
        "side indexes": ("jpeg-index.sqlite", side_indexes),
    }


def printed_of_tables(folder: Path) -> dict[str, str]:
    """What a program prints that opens a table, by the name of its file, which is not read."""
    import polars

    from entry_point.config.data_config import DataConfig
    from entry_point.data.loader import open_source

    def open_and_count(data: DataConfig) -> int:
        return len(open_source(data, "train", Path()))

    rows, printed = polars.DataFrame({"path": ["a.jpg"], "label": ["a"]}), {}
    for suffix in ("csv", "parquet"):
        table = folder / f"rows.{suffix}"
        getattr(rows, f"write_{suffix}")(table)
        data = DataConfig(format="manifest", root=str(table))
        os.environ |= {"FAILING_PATH": table.name, "FAILING_TIMES": "1"}
        with redirect_stderr(StringIO()) as errors:
            assert run_program("reading", partial(open_and_count, data))
        printed[table.name] = errors.getvalue()
    return printed


def main(photographs: Path, folder: Path) -> None:
    retries.PAUSES = (0.0, 0.0, 0.0)
    found: dict[str, Any] = {}
    for name, (path, reading) in readings(photographs, folder).items():
        expected = reading()
        os.environ |= {"FAILING_PATH": path, "FAILING_TIMES": "3"}
        try:
            found[name] = {"same": reading() == expected, "left": _failures_left()}
        except Exception as error:
            found[name] = {"error": repr(error)}
        os.environ["FAILING_TIMES"] = "0"
    found[TABLES] = printed_of_tables(folder)
    (folder / FOUND).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
