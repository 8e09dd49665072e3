"""Whoever trains with this commit sees the samples that earlier commits gave."""

from __future__ import annotations

import json

import pytest

from tests.recorded import samples

EXPECTED = json.loads(samples.FILE.read_text())


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return samples.record(tmp_path_factory.mktemp("samples"))


def test_the_photographs_are_those_of_the_record(found: dict[str, str]) -> None:
    """Otherwise Pillow writes other files, and the digests of pixels must be recorded again."""
    assert found["photographs"] == EXPECTED["photographs"]


@pytest.mark.parametrize("kind", ["order", "boxes", "draws", "pixels", "labels"])
def test_samples_are_those_of_the_record(kind: str, found: dict[str, str]) -> None:
    expected = {name: value for name, value in EXPECTED.items() if name.startswith(kind)}
    assert len(expected) >= 6
    assert {name: found.get(name) for name in expected} == expected
