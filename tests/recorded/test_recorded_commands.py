"""Every command of README, docs and examples runs in a fresh copy: `make test ONLY=documents`."""

import os

import pytest

from tests.recorded import commands


@pytest.mark.timeout(1800)
@pytest.mark.skipif("TEST_DOCUMENTS" not in os.environ, reason="takes minutes: ONLY=documents")
def test_every_command_of_the_documents_ends_as_it_should() -> None:
    """Those of docs/adapt.md are run by tests/test_recipes.py."""
    assert commands.main(recipes=False) == 0
