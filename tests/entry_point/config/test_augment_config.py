import pytest

from entry_point.config.config_errors import ConfigError
from entry_point.config.policy_config import RandTimm
from entry_point.config.train_config import load_train_config

OWN = "augment.name=project.augmentations.Noise"


def test_a_policys_arguments_have_their_defaults_and_types() -> None:
    config, _ = load_train_config(["augment.name=rand_timm", "augment.kwargs.m=5"])
    assert config.augment.policy() == RandTimm("nearest", [0, 0, 0], n=2, m=5)


def test_the_log_says_what_is_augmented_and_what_costs_the_interpreter() -> None:
    config, _ = load_train_config(["augment.name=trivial", "augment.erase=0.1"])
    assert config.augment.describe() == "trivial; erase 0.1 of the samples"
    config, _ = load_train_config([OWN, "augment.per=sample"])
    assert config.augment.describe() == (
        "project.augmentations.Noise, on each sample: Python runs for each, which costs decoding "
        "speed"
    )
    assert load_train_config([])[0].augment.describe() == ""


@pytest.mark.parametrize(
    ("overrides", "error"),
    [
        (["augment.kwargs.p=1"], "augment.kwargs={p:1}: needs augment.name"),
        (
            ["augment.name=rand_timm", "augment.kwargs.magnitude=3"],
            "augment.kwargs.magnitude=3: no such key; augment.kwargs has interpolation, fill, n, "
            "m, p, mstd, inc",
        ),
        (
            ["augment.name=rand_timm", "augment.kwargs.m=31"],
            "augment.kwargs.m=31: Input should be less than or equal to 10",
        ),
        (
            ["augment.name=rand_timm", "augment.kwargs.n=two"],
            "augment.kwargs.n=two: Input should be a valid integer",
        ),
        (
            ["augment.name=color_jitter", "augment.kwargs.contrast=1e38"],
            "augment.kwargs.contrast=1e+38: Input should be less than or equal to 100",
        ),
        (
            ["augment.name=trivial", "augment.kwargs.interpolation=bicubic"],
            "augment.kwargs.interpolation=bicubic: Input should be 'nearest' or 'bilinear'",
        ),
        (
            ["augment.name=erase", "augment.kwargs.scale=[0.5,0.1]"],
            "augment.kwargs.scale=[0.5,0.1]: must be [smallest,largest]",
        ),
        (["augment.erase=1.5"], "augment.erase=1.5: Input should be less than or equal to 1"),
        (
            ["augment.name=erase", "augment.erase=0.5"],
            "augment.erase=0.5: augment.name=erase does that, too; set augment.kwargs.p instead",
        ),
        (
            ["augment.name=trivial", "augment.per=sample"],
            "augment.per=sample: is for your own augmentation, a dotted path in augment.name; "
            "remove it",
        ),
        (
            ["augment.name=trivial", "pipeline=dali"],
            "augment.name=trivial: augments samples, which pipeline=dali cannot; use "
            "pipeline=threads",
        ),
        (
            [OWN, "augment.per=sample", "pipeline=dali"],
            "augment.name=project.augmentations.Noise: augments samples, which pipeline=dali "
            "cannot; use pipeline=threads",
        ),
    ],
)
def test_a_wrong_augmentation_setting_is_one_line(overrides: list[str], error: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_train_config(overrides)
    assert str(caught.value) == error


def test_a_batch_augmentation_of_your_own_goes_with_dali() -> None:
    load_train_config([OWN, "pipeline=dali"])
