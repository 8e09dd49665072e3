"""The environments of the two SDKs, which `make test ONLY=launch` creates.

Importing an SDK takes most of a program's time: one process per SDK imports it once, and is forked
for each program.
"""

import functools
import json
import os
import subprocess
import tempfile
from pathlib import Path

from tests.launch.conftest import ROOT, Aws

ENVIRONMENTS = {"2": ROOT / ".venv-launch-v2", "3": ROOT / ".venv-launch-v3"}
IMPORTS = {
    "2": "sagemaker.estimator, sagemaker.pytorch, sagemaker.workflow.pipeline",
    "3": "sagemaker.train.model_trainer, sagemaker.mlops.workflow.pipeline",
}
SERVER = """
import gc, json, os, signal, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # SDK v2 prints while it is imported
import {imports}, launch.notebook
gc.freeze()
for line in sys.stdin:
    program, arguments, environment, output = json.loads(line)
    if child := os.fork():
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)
        continue
    signal.alarm(240)  # a program that hangs is killed
    for number, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(f"{{output}}/{{name}}", os.O_WRONLY | os.O_CREAT), number)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["-c", *arguments]
    code = 0
    try:
        exec(compile(program, "<string>", "exec"), {{"__name__": "__main__"}})
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else bool(error.code)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    os._exit(code)
"""


def run_python(
    sdk: str, aws: Aws, home: Path, program: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in an SDK's environment, on the clone, with the made-up account."""
    account = {"PATH": os.environ["PATH"], "HOME": str(home), **aws.environment}
    environment = {**account, "PYTHONPATH": str(ROOT), **environment}
    server = _server(sdk)
    assert server.stdin and server.stdout
    with tempfile.TemporaryDirectory() as output:
        server.stdin.write(json.dumps([program, arguments, environment, output]) + "\n")
        server.stdin.flush()
        code = int(server.stdout.readline())
        texts = [Path(output, name).read_text() for name in ("stdout", "stderr")]
    return subprocess.CompletedProcess(arguments, code, *texts)


def submit(sdk: str, aws: Aws, home: Path, program: str, *arguments: str, **more: str) -> str:
    """Run a program that succeeds; returns its output."""
    done = run_python(sdk, aws, home, program, *arguments, **more)
    assert done.returncode == 0, done.stderr
    return done.stdout


@functools.cache
def _server(sdk: str) -> subprocess.Popen[str]:
    """It ends with the tests, which hold its standard input."""
    program = SERVER.format(imports=IMPORTS[sdk])
    return subprocess.Popen(
        [str(ENVIRONMENTS[sdk] / "bin" / "python"), "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
