"""Every command of README, docs and examples runs in a fresh copy: `make test ONLY=documents`."""

import os

import pytest

from tests import printed_commands
from tests.printed_commands import printed, tiny
from tests.recorded.frozen import HERE


@pytest.mark.timeout(1800)
@pytest.mark.skipif("TEST_DOCUMENTS" not in os.environ, reason="takes minutes: ONLY=documents")
def test_every_command_of_the_documents_succeeds() -> None:
    assert printed_commands.main() == 0


def test_commands_are_replayed_without_an_account_or_an_engine() -> None:
    commands = list(printed(HERE))
    replayed = [command for command in commands if not command.skipped]
    assert len(replayed) > max(130, 0.74 * len(commands))
    for command in replayed:
        text = tiny(command.text)
        if "sagemaker-" in text:
            assert text.startswith(("DRY_RUN=1 ", "make -n ", "from ", "import "))
