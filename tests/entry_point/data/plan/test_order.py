import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entry_point.config.config_errors import ConfigError
from entry_point.data.plan.order import EpochPlan


@given(st.integers(20, 200), st.integers(1, 10), st.integers(0, 5), st.data())
def test_resuming_at_a_step_gives_the_remaining_steps(
    count: int, batch_size: int, epoch: int, data: st.DataObject
) -> None:
    plan = EpochPlan(count, batch_size, seed=3, train=data.draw(st.booleans()))
    start = data.draw(st.integers(0, plan.steps_per_epoch))
    whole = [batch.tolist() for batch in plan.batches(epoch)]
    assert [batch.tolist() for batch in plan.batches(epoch, start)] == whole[start:]
    assert len(whole) == plan.steps_per_epoch


@given(st.integers(24, 200), st.sampled_from([1, 2, 3, 4, 6]))
def test_ranks_together_take_the_steps_of_one_rank_with_the_same_global_batch(
    count: int, world_size: int
) -> None:
    alone = list(EpochPlan(count, 12, seed=1, train=True).batches(2))
    shares = [
        list(EpochPlan(count, 12 // world_size, 1, True, rank, world_size).batches(2))
        for rank in range(world_size)
    ]
    for step, batch in enumerate(alone):
        for rank, share in enumerate(shares):
            np.testing.assert_array_equal(share[step], batch[rank::world_size])


@given(st.integers(1, 100), st.integers(1, 10), st.integers(1, 4))
def test_validation_gives_every_sample_once(count: int, batch_size: int, world_size: int) -> None:
    plans = [EpochPlan(count, batch_size, 0, False, rank, world_size) for rank in range(world_size)]
    seen = [index for plan in plans for batch in plan.batches(0) for index in batch]
    assert sorted(seen) == list(range(count))
    assert all(len(list(plan.batches(0))) == plan.steps_per_epoch for plan in plans)


def test_training_gives_no_sample_twice_and_drops_less_than_a_step() -> None:
    seen = [index for batch in EpochPlan(103, 10, 0, True).batches(0) for index in batch]
    assert len(seen) == len(set(seen)) == 100


def test_fewer_images_than_one_step_is_an_error() -> None:
    with pytest.raises(ConfigError, match="batch_size=8: must be at most 6, as"):
        EpochPlan(7, 4, 0, True, rank=0, world_size=2)
