"""Decoding by spdl.io (on FFmpeg), with this template's crop boxes."""

from __future__ import annotations

from collections.abc import Sequence

import spdl.io

from custom_op import jpeg_headers
from entry_point.data.decode.allocation import Allocate
from entry_point.data.decode.made_images import MadeImages
from entry_point.data.plan.crops import CropPlanner, Ints
from entry_point.data.plan.orientation import stored_box, upright_size
from entry_point.data.sources.source import Source


def spdl_images(
    source: Source, planner: CropPlanner, epoch: int, indices: Ints, _allocate: Allocate
) -> MadeImages:
    """Pixels, uint8 (N, 3, image_size, image_size); EXIF orientation is not applied."""
    side = planner.data.image_size
    files = [source.read(int(index)) for index in indices]
    headers = jpeg_headers(files).numpy()
    heights, widths = upright_size(*headers.T)
    plan = planner.plan(epoch, indices, heights, widths)
    upright = zip(heights.tolist(), widths.tolist(), headers[:, 2].tolist(), strict=True)
    crops = zip(plan.boxes.tolist(), plan.flips, strict=True)
    frames = []
    for file, header, (box, flip) in zip(files, upright, crops, strict=True):
        stored = stored_box(box, *header)
        packets = spdl.io.demux_image(file.numpy())
        frames.append(spdl.io.decode_packets(packets, filter_desc=spdl_filters(stored, flip, side)))
    images = spdl.io.to_torch(spdl.io.convert_frames(frames)).permute(0, 3, 1, 2)
    return MadeImages(images, {})


def spdl_filters(box: Sequence[int], flip: bool, side: int) -> str:
    top, left, height, width = box
    steps = [f"crop={width}:{height}:{left}:{top}:exact=1", f"scale={side}:{side}:flags=bilinear"]
    return ",".join([*steps, *(["hflip"] if flip else []), "format=pix_fmts=rgb24"])
