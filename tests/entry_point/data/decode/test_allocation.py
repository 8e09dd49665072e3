from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from entry_point.data.decode.allocation import ReusedMemory


@pytest.mark.parametrize(
    "use", [lambda t: t, lambda t: t.view(10, 10)[3], lambda t: t.numpy(), lambda t: t.detach()]
)
def test_memory_is_handed_out_again_only_when_no_view_of_it_is_left(
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
def test_what_is_in_use_keeps_its_content(steps: list[tuple[int, int]]) -> None:
    """Each step takes memory and, if there is that many, lets an earlier one go."""
    memory, held, number = ReusedMemory(), dict[int, Tensor](), 0
    for size, dropped in steps:
        number += 1
        held[number] = memory(size).fill_(number)
        if dropped < len(held):
            held.pop(list(held)[dropped])
        for value, tensor in held.items():
            assert bool((tensor == value).all())


def test_memory_is_reused_however_many_pieces_are_in_use() -> None:
    memory = ReusedMemory()
    held = [memory(64) for _ in range(40)]
    addresses = {tensor.data_ptr() for tensor in held}
    for place in range(40):
        held[place] = torch.empty(0)
        held[place] = memory(64)
    assert {tensor.data_ptr() for tensor in held} == addresses


def test_memory_of_another_size_makes_room() -> None:
    memory = ReusedMemory()
    for size in range(1, 50):
        assert memory(size).shape == (size,)
    assert len(memory._kept) == 16
    assert torch.is_tensor(memory(1000))
