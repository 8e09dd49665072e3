"""One of two ranks on one device: the training program, with gloo in NCCL's place.

NCCL refuses two ranks on one GPU. torchrun starts this module with overrides.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist

from entry_point import train
from entry_point.job import devices

_join = dist.init_process_group


def _join_by_gloo(_backend: str, **options: Any) -> None:
    options.pop("device_id", None)
    _join("gloo", **options)


def _share_device(wanted: str, local_rank: int) -> torch.device:
    del local_rank  # all ranks use the first device
    return torch.device("cuda:0" if wanted == "cuda" else "cpu")


def main(arguments: list[str]) -> int:
    devices._choose_device = _share_device
    dist.init_process_group = _join_by_gloo  # type: ignore[assignment]
    return train.main(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
