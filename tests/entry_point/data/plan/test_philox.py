import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from entry_point.data.plan.philox import permutation, philox, unit

words = st.integers(0, 2**64 - 1)


@given(
    key=st.tuples(words, words), counter=st.tuples(st.integers(1, 2**64 - 1), words, words, words)
)
def test_philox_gives_the_words_of_numpys_generator(
    key: tuple[int, int], counter: tuple[int, int, int, int]
) -> None:
    before = (counter[0] - 1, *counter[1:])  # numpy increments before it draws
    reference = np.random.Philox(
        key=np.array(key, dtype=np.uint64), counter=np.array(before, dtype=np.uint64)
    )
    np.testing.assert_array_equal(philox(key, counter)[:, 0], reference.random_raw(4))


def test_many_counters_at_once_draw_what_each_draws_alone() -> None:
    together = philox((3, 4), (np.arange(50), 7, np.arange(50) * 11, 0))
    for i in range(50):
        np.testing.assert_array_equal(together[:, i], philox((3, 4), (i, 7, i * 11, 0))[:, 0])


def test_unit_numbers_reach_from_0_to_just_below_1() -> None:
    extremes = unit(np.array([0, 2**64 - 1], dtype=np.uint64))
    assert extremes[0] == 0 and 0.9999999 < extremes[1] < 1


@given(count=st.integers(0, 200), seed=words, epoch=words)
def test_permutation_holds_every_number_once(count: int, seed: int, epoch: int) -> None:
    assert sorted(permutation((seed, 0), count, epoch)) == list(range(count))
