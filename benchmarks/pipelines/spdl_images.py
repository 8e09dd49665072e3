"""Decoding by spdl.io (on FFmpeg), with this template's crop boxes."""

from __future__ import annotations

from collections.abc import Sequence

import spdl.io
from torch import Tensor

from custom_op import jpeg_headers
from entry_point.data.decode.allocation import Allocate
from entry_point.data.plan.crops import CropPlan, upright_size
from entry_point.data.plan.samples import Ints
from entry_point.data.sources.source import Encoded

# EXIF value -> (transpose, then flip top-bottom, then flip left-right), which make it upright.
_STEPS = {
    1: (False, False, False),
    2: (False, False, True),
    3: (False, True, True),
    4: (False, True, False),
    5: (True, False, False),
    6: (True, False, True),
    7: (True, True, True),
    8: (True, True, False),
}


class SpdlDecoder:
    """One sample of each image; EXIF orientation is not applied."""

    has_threads = uses_indexes = False

    def sizes(self, encoded: Encoded) -> tuple[Ints, Ints]:
        return upright_size(*jpeg_headers(encoded.files).numpy().T)

    def decode(
        self,
        encoded: Encoded,
        plan: CropPlan,
        allocate: Allocate,  # noqa: ARG002 - SPDL's own
    ) -> tuple[Tensor, dict[int, str]]:
        frames, headers = [], jpeg_headers(encoded.files).numpy()
        for i, box in enumerate(plan.boxes.tolist()):
            height, width = (int(side[0]) for side in upright_size(*headers[i : i + 1].T))
            stored = stored_box(box, height, width, int(headers[i, 2]))
            packets = spdl.io.demux_image(encoded.files[i].numpy())
            filters = spdl_filters(stored, plan.flips[i], plan.side)
            frames.append(spdl.io.decode_packets(packets, filter_desc=filters))
        images = spdl.io.to_torch(spdl.io.convert_frames(frames)).permute(0, 3, 1, 2)
        return images, {}

    def close(self) -> None: ...


def spdl_filters(box: Sequence[int], flip: bool, side: int) -> str:
    top, left, height, width = box
    steps = [f"crop={width}:{height}:{left}:{top}:exact=1", f"scale={side}:{side}:flags=bilinear"]
    return ",".join([*steps, *(["hflip"] if flip else []), "format=pix_fmts=rgb24"])


def stored_box(
    box: Sequence[int], height: int, width: int, orientation: int
) -> tuple[int, int, int, int]:
    """`box` of an upright `height` x `width` image, as a box of its stored pixels."""
    transpose, flip_rows, flip_columns = _STEPS[orientation]
    top, left, box_height, box_width = (int(side) for side in box)
    if flip_rows:
        top = height - top - box_height
    if flip_columns:
        left = width - left - box_width
    if transpose:
        return left, top, box_width, box_height
    return top, left, box_height, box_width
