"""What policies draw at the ends of what their arguments allow: every decoder takes it."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from custom_op.augment_ops import NUMBERS, PARAMETERS
from entry_point.config.augment_config import AugmentConfig
from entry_point.config.policy_config import POLICIES
from entry_point.data.decode.allocation import reused_memory
from entry_point.data.decode.decode import OperatorDecoder
from entry_point.data.decode.pillow import PillowDecoder
from entry_point.data.plan.crops import CropPlan
from entry_point.data.plan.policies import Floats, build_augmenter
from entry_point.data.sources.source import Encoded
from tests.custom_op.augment.torchvision_ops import GEOMETRY, between_pixels, image

SIDE = 100
"""That of `image`: crops are not resized, so all decoders begin with the same pixels."""
BILINEAR = {"interpolation": "bilinear", "fill": [255, 0, 1]}
ENDS: dict[str, list[dict[str, Any]]] = {
    "trivial": [{}, BILINEAR],
    "rand_timm": [
        {"m": m, "p": 1, "inc": inc, "mstd": mstd, **move}
        for m in (0, 10)
        for inc in (False, True)
        for mstd in (0, 100)
        for move in ({}, BILINEAR)
    ],
    "color_jitter": [
        {"brightness": width, "contrast": width, "saturation": width, "hue": hue}
        for width, hue in ((0, 0), (100, 0.5))
    ],
    "simclr": [{"strength": end, "jitter": 1, "grayscale": 1, "blur": 1} for end in (0, 2.5)],
    "erase": [
        {"p": 1, "scale": scale, "ratio": ratio}
        for scale in ([0, 0], [0, 1], [1, 1])
        for ratio in ([0.3, 3.3], [1e-3, 1e3])
    ],
}
"""The arguments of each policy at both ends of what is allowed."""


@cache
def drawn() -> Floats:
    """What the policies draw from random numbers, of which half are the least or the largest."""
    rng, tables = np.random.default_rng(0), []
    for name, kwargs in ((name, each) for name, ends in ENDS.items() for each in ends):
        augmenter = build_augmenter(AugmentConfig(name, kwargs), [0.5] * 3)
        assert augmenter is not None
        ((_, policy),) = augmenter.steps
        u = rng.random((policy.draws, 2000))
        ends = rng.choice([0, np.nextafter(1, 0)], u.shape)
        u = np.where(rng.random(u.shape) < 0.5, ends, u)
        tables.append(policy.table(u, SIDE).reshape(-1, 8))
    return np.concatenate(tables)


def test_every_policy_is_tried() -> None:
    assert ENDS.keys() == POLICIES.keys()


@pytest.mark.parametrize("name", PARAMETERS)
def test_decoders_make_the_same_of_the_ends_of_each_parameter(name: str) -> None:
    """Within one level, but where nearest pixels are equally near."""
    rows = drawn()[drawn()[:, 0] == NUMBERS[name]]
    ends = [(rows[:, i].argmin(), rows[:, i].argmax()) for i in range(len(PARAMETERS[name]) + 1)]
    cells = np.unique(rows[np.ravel(ends)], axis=0)
    boxes, flips = np.array([[0, 0, SIDE, SIDE]] * len(cells)), np.zeros(len(cells), np.bool_)
    plan = CropPlan(SIDE, boxes, flips, cells[:, None])
    for kind in ("photograph", "white", "one channel"):
        encoded = Encoded([image(kind)] * len(cells))
        (ours, damage), (theirs, other_damage) = (
            decoder.decode(encoded, plan, reused_memory)
            for decoder in (OperatorDecoder(), PillowDecoder())
        )
        assert not damage and not other_damage
        for row, difference in zip(cells, (ours.int() - theirs.int()).abs(), strict=True):
            if name in GEOMETRY and not row[2]:
                difference[:, between_pixels((name, tuple(row[1:].tolist())), SIDE)] = 0
            assert difference.max() <= 1, row
