"""The memory of batches."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from entry_point.data.decode.allocation import ReusedMemory, empty_images, shared_memory
from entry_point.data.errors import DataError
from tests.failing_disk import without_room


@pytest.mark.parametrize(
    "use", [lambda t: t, lambda t: t.view(10, 10)[3], lambda t: t.numpy(), lambda t: t.detach()]
)
def test_memory_is_reused_only_when_no_view_of_it_is_left(
    use: Callable[[Tensor], object],
) -> None:
    memory = ReusedMemory()
    first = memory(100)
    address = first.data_ptr()
    used = use(first)
    del first
    assert memory(100).data_ptr() != address
    del used
    addresses = {memory(100).data_ptr() for _ in range(3)}
    assert address in addresses


@given(st.lists(st.tuples(st.sampled_from([64, 256]), st.integers(0, 40)), max_size=80))
def test_memory_in_use_keeps_its_content(steps: list[tuple[int, int]]) -> None:
    """Each step allocates a block and, if the index exists, drops an earlier one."""
    memory, held, number = ReusedMemory(), dict[int, Tensor](), 0
    for size, dropped in steps:
        number += 1
        held[number] = memory(size).fill_(number)
        if dropped < len(held):
            held.pop(list(held)[dropped])
        for value, tensor in held.items():
            assert bool((tensor == value).all())


def test_memory_is_reused_however_many_blocks_are_in_use() -> None:
    memory = ReusedMemory()
    held = [memory(64) for _ in range(40)]
    addresses = {tensor.data_ptr() for tensor in held}
    for place in range(40):
        held[place] = torch.empty(0)
        held[place] = memory(64)
    assert {tensor.data_ptr() for tensor in held} == addresses


def test_blocks_of_a_new_size_replace_free_blocks() -> None:
    memory = ReusedMemory()
    for size in range(1, 50):
        assert memory(size).shape == (size,)
    assert len(memory._kept) == 16
    assert torch.is_tensor(memory(1000))


def test_full_shared_memory_is_an_error_that_says_what_to_do_and_leaves_no_file() -> None:
    reason = r"27648 bytes .*--shm-size.*pipeline=threads"
    with without_room(), pytest.raises(DataError, match=reason):
        empty_images(shared_memory, 1, 96)
    assert not [*Path("/dev/shm").glob(f"torch_{os.getpid()}_*")]
