import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from entry_point.data.plan.philox import WORD32, permutation, philox, philox32, unit

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


def test_permutations_of_two_epochs_differ() -> None:
    assert (permutation((0, 0), 1000, 0) != permutation((0, 0), 1000, 1)).mean() > 0.9


@pytest.mark.parametrize(
    ("key", "counter", "words"),
    [
        ((0, 0), (0, 0, 0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((WORD32, WORD32), (WORD32,) * 4, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0xA4093822, 0x299F31D0),
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox32_gives_the_known_answers_of_its_authors(
    key: tuple[int, int], counter: tuple[int, ...], words: tuple[int, ...]
) -> None:
    drawn = philox32(key, torch.tensor(counter).unsqueeze(1).expand(4, 3))
    assert drawn.T.tolist() == [list(words)] * 3
