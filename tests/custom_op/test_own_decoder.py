"""The operator's own decoder and libjpeg-turbo agree on the pixels and on what is damaged.

EXACT_PAIRS and DAMAGED_COPIES in the environment make the tests longer.
"""

from __future__ import annotations

import os
import random
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from custom_op.build import SOURCES
from custom_op.toolchain import find_toolchain
from tests import forkserver
from tests.custom_op.jpegs import Pixels, decoded, encode, picture, tensor
from tests.custom_op.test_crop import assert_crops_equal

FUZZ = Path(__file__).parents[1] / "fuzz"
PAIRS = int(os.environ.get("EXACT_PAIRS", "20000"))
SAMPLINGS = ("grey", "4:4:4", "4:2:2", "4:2:0", "4:4:0")
COPIES = int(os.environ.get("DAMAGED_COPIES", "40"))
DIGEST = """
import hashlib, io, random
import torch
from PIL import Image
from skimage import data
from custom_op import build_info, decode_crop_resize_batch
from tests.custom_op.augment.torchvision_ops import every_operation

rng = random.Random(0)
file = io.BytesIO()
Image.fromarray(data.astronaut()).save(file, "JPEG", quality=90)
jpeg = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
boxes = []
for _ in range(40):
    height, width = rng.randint(1, 512), rng.randint(1, 512)
    boxes.append((rng.randint(0, 512 - height), rng.randint(0, 512 - width), height, width))
flip = torch.arange(40) % 2 == 0
digest = hashlib.sha256()
for size in (7, 224):
    batch = decode_crop_resize_batch([jpeg] * 40, torch.tensor(boxes), size, flip=flip)
    digest.update(batch.images.contiguous().numpy().tobytes())
for size in (33, 224):
    augment = every_operation()
    count = len(augment)
    batch = decode_crop_resize_batch(
        [jpeg] * count, torch.tensor(boxes[:count]), size, augment=augment
    )
    digest.update(batch.images.contiguous().numpy().tobytes())
four_views = torch.tensor(boxes).view(10, 4, 4)
batch = decode_crop_resize_batch([jpeg] * 10, four_views, 33, flip=flip.view(10, 4))
digest.update(batch.images.contiguous().numpy().tobytes())
print("native" if "native" in build_info()["flags"] else "portable", digest.hexdigest())
"""


def random_size(rng: random.Random) -> tuple[int, int]:
    """Mostly small; some are only a few pixels, or up to 4096 pixels, wide or high."""
    height, width = rng.randint(1, 120), rng.randint(1, 160)
    kind = rng.randrange(50)
    if kind < 8:
        height, width = rng.randint(1, 18), rng.randint(1, 18)
    elif kind == 8:
        width = rng.randint(161, 4096)
    elif kind == 9:
        height = rng.randint(121, 4096)
    return height, width


def random_picture(rng: random.Random) -> Pixels:
    """A photograph, or black and white noise, which overflows the range of samples most."""
    height, width = random_size(rng)
    seed = rng.randrange(1 << 30)
    if rng.randrange(5):
        return picture(height, width, seed)
    levels = np.random.default_rng(seed).integers(0, 2, (height, width, 3), dtype=np.uint8)
    return 255 * levels


def test_random_crops_of_random_files_equal_the_whole_decode() -> None:
    rng = random.Random(15)
    for _ in range(PAIRS // 50):
        data = tensor(
            encode(
                random_picture(rng),
                rng.choice(SAMPLINGS),
                rng.choice((rng.randint(1, 100), 75, 100)),
                restart_interval=rng.choice((0, rng.randint(1, 9), rng.randint(1, 300))),
                optimise=rng.randrange(2),
                wide_tables=rng.randrange(2),
            )
        )
        assert_crops_equal(data, decoded(data), rng, 50)


def test_damaged_files_are_refused_or_decoded_as_libjpeg_decodes_them(tmp_path: Path) -> None:
    """The fuzzing target makes the comparison. `make test ONLY=fuzz` does it for more files, with
    and without AVX2."""
    flags = [flag for flag in find_toolchain().compile_flags if flag != "-O3"]
    compile_target(tmp_path, [*flags, "-O1"])
    corpus = sorted(map(str, (FUZZ / "corpus").iterdir()))
    done = subprocess.run(
        [str(tmp_path / "replay"), str(COPIES), *corpus], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{len(corpus) * (COPIES + 1)} inputs"


def compile_target(folder: Path, flags: list[str]) -> None:
    """In few units: a compiler reads the same headers for each."""
    toolchain = find_toolchain()
    units: dict[str, list[Path]] = {
        "target": [FUZZ / "target.cpp"],
        "replay": [FUZZ / "replay.cpp"],
    }
    for path in sorted(SOURCES.rglob("*.cpp")):
        if path.parent.name != "binding":
            units.setdefault(path.parent.name, []).append(path)
    commands = []
    for name, files in units.items():
        (unit := folder / f"{name}.cpp").write_text("".join(f'#include "{f}"\n' for f in files))
        output = ["-o", str(unit.with_suffix(".o"))]
        commands.append([toolchain.compiler, *flags, f"-I{SOURCES}", "-c", str(unit), *output])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda command: subprocess.run(command, check=True), commands))
    objects = map(str, folder.glob("*.o"))
    link = [toolchain.compiler, *objects, "-o", str(folder / "replay"), *toolchain.link_flags]
    subprocess.run(link, check=True)


def test_build_without_native_flags_gives_the_same_pixels(tmp_path: Path) -> None:
    script = tmp_path / "compiler"
    real = find_toolchain().compiler
    script.write_text(f'#!/bin/sh\ncase "$*" in *=native*) exit 1;; esac\nexec {real} "$@"\n')
    script.chmod(0o755)
    native = digest(tmp_path / "native")
    portable = digest(tmp_path / "portable", CUSTOM_OP_CACHE=str(tmp_path), CXX=str(script))
    assert (native[0], portable[0]) == ("native", "portable")
    assert native[1] == portable[1]


def digest(log: Path, **environment: str) -> list[str]:
    program = forkserver.start(["-c", DIGEST], log, environment=environment)
    output, _ = program.communicate(timeout=240)
    assert program.returncode == 0, output
    return output.splitlines()[-1].split()
