"""The environments of the two SDKs, which `make test ONLY=launch` creates."""

import os
import subprocess
from pathlib import Path

from tests.launch.conftest import ROOT, Aws

ENVIRONMENTS = {"2": ROOT / ".venv-launch-v2", "3": ROOT / ".venv-launch-v3"}


def run_python(
    sdk: str, aws: Aws, home: Path, *arguments: str, cwd: Path = ROOT, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the Python of an SDK's environment on the clone, with the made-up account."""
    account = {"PATH": os.environ["PATH"], "HOME": str(home), **aws.environment}
    return subprocess.run(
        [str(ENVIRONMENTS[sdk] / "bin" / "python"), *arguments],
        cwd=cwd,
        env={**account, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=240,
    )
