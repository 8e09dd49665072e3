"""Every engine augments the same samples in the same way, from any step on."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from entry_point.config.augment_config import AugmentConfig
from entry_point.config.config_errors import ConfigError
from entry_point.config.data_config import DataConfig
from entry_point.data.batch import Batch
from entry_point.data.decode.augment_reference import augmented
from entry_point.data.decode.own_augment import OwnAugmentation
from entry_point.data.plan.policies import build_augmenter
from entry_point.data.plan.samples import Samples
from tests.entry_point.data.engines.every_engine import Way
from tests.entry_point.data.loaders import SEED, SIDE, epoch_of, images_of, loader_of

OWN = "tests.entry_point.data.engines.test_augmented_engines"


def batches(
    root: Path,
    engine: Way,
    augment: AugmentConfig,
    split: str = "train",
    step: int = 0,
    **data: Any,
) -> list[Batch]:
    loader = loader_of(root, engine, split, workers=0, spec={"augment": augment}, **data)
    return epoch_of(loader, 1, step)


def images(*arguments: Any, **options: Any) -> torch.Tensor:
    return images_of(batches(*arguments, **options))


POLICIES = [
    AugmentConfig("trivial", erase=0.5),
    AugmentConfig("rand_timm", {"p": 1, "mstd": 0.5, "inc": True, "interpolation": "bilinear"}),
    AugmentConfig("simclr"),
    AugmentConfig("color_jitter"),
]


def by_reference(plain: Batch, augment: AugmentConfig) -> torch.Tensor:
    """A batch's images after what torchvision's functions do to them."""
    augmenter = build_augmenter(augment, DataConfig().normalization[0])
    assert augmenter is not None
    table = augmenter.table(SEED, Samples.of(1, plain.indices.numpy()), SIDE)
    pairs = zip(plain.images, table, strict=True)
    return torch.stack([augmented(image, rows) for image, rows in pairs]).int()


@pytest.mark.parametrize("engine", ["threads", "workers", "pillow"])
def test_every_engine_applies_the_same_table_to_its_pixels(photo_folder: Path, engine: Way) -> None:
    """Engines' pixels without augmentation differ by at most 1 level."""
    plain = batches(photo_folder, engine, AugmentConfig())
    for augment in POLICIES:
        for before, after in zip(plain, batches(photo_folder, engine, augment), strict=True):
            expected = by_reference(before, augment)
            difference = (after.images.int() - expected).abs()
            if engine != "pillow":
                # Nearest pixels are chosen otherwise where two are equally near.
                assert (difference > 2).float().mean() < 0.01
            else:
                assert not difference.any()
            changed = (before.images.int() - expected).abs().amax((1, 2, 3)) > 8
            assert changed.float().mean() > 0.3


def test_the_sample_that_replaces_a_damaged_one_is_augmented_as_itself(photos: Path) -> None:
    first = min((photos / "train").glob("*/*.jpg"))
    first.write_bytes(first.read_bytes()[:500])
    augment = AugmentConfig("color_jitter", erase=0.5)
    lenient: dict[str, Any] = {"max_bad_fraction": 0.5}
    plain = batches(photos, "threads", AugmentConfig(), **lenient)
    found = batches(photos, "threads", augment, **lenient)
    assert sum(len(batch.damage) for batch in found) == 1
    for before, after in zip(plain, found, strict=True):
        difference = (after.images.int() - by_reference(before, augment)).abs()
        assert (difference > 2).float().mean() < 0.01


def test_augmentation_leaves_boxes_and_flips_and_validation_alone(photo_folder: Path) -> None:
    """Erasing covers a part of a sample; the rest is the sample without it."""
    plain = images(photo_folder, "threads", AugmentConfig())
    erased = images(photo_folder, "threads", AugmentConfig(erase=1))
    same = (plain == erased).all(dim=1).flatten(1).float().mean(1)
    assert same.min() > 0.4 and same.max() < 1
    val = (photo_folder, "threads", AugmentConfig("trivial", erase=1), "val")
    assert torch.equal(images(*val), images(photo_folder, "threads", AugmentConfig(), "val"))


class Noisy:
    """Adds noise of one level per pixel, from the generator that it gets."""

    def __init__(self, most: int = 40) -> None:
        self.most, self.unpicklable = most, lambda: None

    def __call__(self, image: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        noise = torch.randint(0, self.most, image.shape, generator=generator, dtype=torch.uint8)
        return image // 2 + noise


def halved() -> Any:
    return lambda image, _: image[:, ::2]


def listed() -> Any:
    return lambda image, _: [*image]


def test_your_own_function_draws_the_same_for_each_training_sample_in_every_engine(
    photo_folder: Path,
) -> None:
    own = AugmentConfig(f"{OWN}.Noisy", {"most": 30}, per="sample")

    def noise(engine: Way) -> torch.Tensor:
        plain = images(photo_folder, engine, AugmentConfig()).int()
        return images(photo_folder, engine, own).int() - plain // 2

    expected = noise("threads")
    assert expected.min() >= 0 and expected.max() < 30
    assert len({tuple(sample.flatten()[:50].tolist()) for sample in expected}) == len(expected)
    for engine in ("workers", "pillow"):
        assert torch.equal(noise(engine), expected)
    val = images(photo_folder, "threads", own, "val")
    assert torch.equal(val, images(photo_folder, "threads", AugmentConfig(), "val"))


V1, V2 = "torchvision.transforms", "torchvision.transforms.v2"
TRANSFORMS: dict[str, dict[str, Any]] = {
    f"{V2}.AugMix": {"severity": 5},
    f"{V2}.GaussianNoise": {},
    f"{V2}.JPEG": {"quality": [5, 60]},
    f"{V2}.RandomErasing": {"p": 1, "value": "random"},
    f"{V1}.ColorJitter": {"brightness": 0.4, "hue": 0.1},
}
"""Together, they draw with every function of torch that torchvision's transforms draw with."""


def test_a_transform_of_torchvision_draws_the_same_for_each_sample_in_every_engine(
    mixed_folder: Path,
) -> None:
    augment = AugmentConfig(f"{V2}.AugMix", {"severity": 5}, per="sample")
    whole = batches(mixed_folder, "threads", augment)
    late = batches(mixed_folder, "workers", augment, step=1)
    for again, same in zip(late, whole[1:], strict=True):
        assert torch.equal(again.images, same.images)
    # Pillow decodes to other pixels, by one level at most, which transforms carry on.
    difference = images(mixed_folder, "pillow", augment).int() - images_of(whole).int()
    assert difference.abs().float().mean() < 2


@pytest.mark.parametrize("path", TRANSFORMS)
def test_a_transform_draws_by_seed_and_sample_and_leaves_the_process_generator(path: str) -> None:
    transform = OwnAugmentation(AugmentConfig(path, TRANSFORMS[path], per="sample"))
    image = torch.randint(0, 256, (3, 8, 8), dtype=torch.uint8).repeat_interleave(8, 1)
    image = image.repeat_interleave(8, 2)

    def changed(seed: int, count: int = 8) -> torch.Tensor:
        copies = image.repeat(count, 1, 1, 1)
        transform(copies, Samples.of(0, np.arange(count)), seed, np.empty(0, np.int64))
        return copies

    before = torch.get_rng_state()
    first = changed(0)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    assert torch.equal(changed(0, 5), first[:5])
    assert len(first.unique(dim=0)) > 1 and not torch.equal(changed(1), first)


def test_three_augment_of_the_documents_is_a_transform(
    photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    document = Path("docs/samples.md").read_text()
    (recipe,) = re.findall(r"```python\n(.*?three_augment.*?)```", document, re.DOTALL)
    (tmp_path / "recipe_of_three.py").write_text(recipe)
    monkeypatch.syspath_prepend(tmp_path)
    augment = AugmentConfig("recipe_of_three.three_augment", per="sample")
    plain = images(photo_folder, "threads", AugmentConfig()).int()
    changed = (images(photo_folder, "threads", augment).int() - plain).abs().flatten(1)
    assert (changed.amax(1) > 8).all()


def test_the_example_changes_each_sample_by_a_few_levels(photo_folder: Path) -> None:
    own = AugmentConfig("project.augmentations.Grain", {"most": 3}, per="sample")
    plain = images(photo_folder, "threads", AugmentConfig()).int()
    difference = images(photo_folder, "threads", own).int() - plain
    assert (difference.amin(), difference.amax()) == (-3, 3)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("halved", "must return an image (3, 48, 48) of torch.uint8, not (3, 24, 48)"),
        ("listed", "must return an image (3, 48, 48) of torch.uint8, not list"),
        ("dict", "must return a function from an image to an image, not dict"),
    ],
)
def test_what_your_function_returns_is_checked(photo_folder: Path, name: str, line: str) -> None:
    own = AugmentConfig("builtins.dict" if name == "dict" else f"{OWN}.{name}", per="sample")
    with pytest.raises(ConfigError, match=re.escape(line)):
        images(photo_folder, "threads", own)
