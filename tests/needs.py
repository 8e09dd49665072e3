"""What some tests need beyond the packages that README.md names."""

import os
from typing import NoReturn

import pytest


def lacks(what: str, way_out: str) -> NoReturn:
    """Skip the test, which lacks something that `way_out` installs; fail it in CI."""
    reason = f"needs {what}: {way_out}"
    if "CI" in os.environ:
        pytest.fail(reason)
    pytest.skip(reason)
