"""The workflow that builds and pushes images asks make for targets and variables that exist."""

import re
import subprocess
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOW = yaml.load((ROOT / "examples/push_image.yaml").read_text(), yaml.BaseLoader)
(JOB,) = WORKFLOW["jobs"].values()


def test_its_commands_are_those_of_the_makefile() -> None:
    commands = [step["run"] for step in JOB["steps"] if "run" in step]
    assert commands
    for device in JOB["strategy"]["matrix"]["device"]:
        for command in commands:
            words = command.replace("${{ matrix.device }}", device).split()
            assert words[0] == "make" and "$" not in " ".join(words)
            done = subprocess.run(
                ["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, text=True
            )
            assert done.returncode == 0, done.stderr
            modules = re.findall(r"-m launch\.image (\w+)", done.stdout)
            assert modules == ["build", "push"]


def test_it_has_a_short_lived_role_and_no_secret() -> None:
    assert WORKFLOW["on"] == {"push": {"branches": ["main"]}}
    assert WORKFLOW["permissions"] == {"contents": "read", "id-token": "write"}
    (credentials,) = (s["with"] for s in JOB["steps"] if "configure-aws-credentials" in str(s))
    assert credentials.keys() == {"role-to-assume", "aws-region"}
    uses = [step["uses"] for step in JOB["steps"] if "uses" in step]
    # The checkout is clean, as `make push` wants it, and has Python before make runs.
    assert uses[0].startswith("actions/checkout@") and "run" in JOB["steps"][-1]
