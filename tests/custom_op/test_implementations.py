"""The code for this processor, the portable code and libjpeg-turbo agree, on damage too.

DAMAGED_COPIES in the environment makes the test of damaged files longer.
"""

import hashlib
import os
import random
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import torch
from skimage.data import astronaut

from custom_op import build_info, decode_crop_resize_batch
from custom_op.build import SOURCES
from custom_op.toolchain import find_toolchain
from tests import forkserver
from tests.custom_op.augment.torchvision_ops import every_operation
from tests.custom_op.jpegs import encode, tensor

FUZZ = Path(__file__).resolve().parents[1] / "fuzz"
STRICT = ("-O1", "-Wall", "-Wextra", "-Werror")
COPIES = int(os.environ.get("DAMAGED_COPIES", "40"))


def test_damaged_files_are_refused_or_decoded_as_libjpeg_decodes_them(tmp_path: Path) -> None:
    """The fuzzing target makes the comparison. `make test ONLY=fuzz` does it for more files, with
    and without AVX2."""
    toolchain, replay = find_toolchain(), tmp_path / "replay"
    commands = toolchain.compile_commands(SOURCES, tmp_path)
    (tmp_path / "binding.cpp").write_text(
        f'#include "{FUZZ / "target.cpp"}"\n#include "{FUZZ / "replay.cpp"}"\n'
    )
    run = partial(subprocess.run, check=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(run, [[*command, *STRICT] for command in commands]))
    link = toolchain.link_command(sorted(tmp_path.glob("*.o")), replay)
    run([part for part in link if part != "-shared"])
    corpus = sorted(map(str, (FUZZ / "corpus").iterdir()))
    # Older versions of torch need their own libraries, even of a program without tensors.
    own = {"LD_LIBRARY_PATH": str(Path(torch.__file__).parent / "lib")}
    done = subprocess.run(
        [str(replay), str(COPIES), *corpus], env=own, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"{len(corpus) * (COPIES + 1)} inputs"


def digest() -> str:
    """The kind of the build, and a digest of crops, flips, operations and views."""
    rng, digest = random.Random(0), hashlib.sha256()
    jpeg = tensor(encode(astronaut(), quality=90))
    some = []
    for _ in range(40):
        height, width = rng.randint(1, 512), rng.randint(1, 512)
        some.append((rng.randint(0, 512 - height), rng.randint(0, 512 - width), height, width))
    boxes, flip, augment = torch.tensor(some), torch.arange(40) % 2 == 0, every_operation()
    count = len(augment)
    batches = [decode_crop_resize_batch([jpeg] * 40, boxes, size, flip=flip) for size in (7, 224)]
    batches += [
        decode_crop_resize_batch([jpeg] * count, boxes[:count], size, augment=augment)
        for size in (33, 224)
    ]
    views, flips = boxes.view(10, 4, 4), flip.view(10, 4)
    batches.append(decode_crop_resize_batch([jpeg] * 10, views, 33, flip=flips))
    for batch in batches:
        digest.update(batch.images.contiguous().numpy().tobytes())
    kind = "native" if "native" in build_info()["flags"] else "portable"
    return f"{kind} {digest.hexdigest()}"


def test_a_strict_build_without_native_flags_gives_the_same_pixels(
    tmp_path: Path, compiler: Callable[[str], Path]
) -> None:
    """Only here are the bindings compiled strictly; the fuzzing target has the other sources."""
    native = digest()
    strict = compiler(f'case "$*" in *=native*) exit 1;; esac; set -- "$@" {" ".join(STRICT)}')
    program = "from tests.custom_op.test_implementations import digest; print(digest())"
    build = forkserver.start(
        ["-c", program],
        tmp_path / "log",
        errors=tmp_path / "errors",
        environment={"CXX": str(strict), "CUSTOM_OP_CACHE": str(tmp_path)},
    )
    portable, errors = build.communicate()
    assert native.startswith("native ")
    assert portable.split() == ["portable", native.split()[1]], errors
