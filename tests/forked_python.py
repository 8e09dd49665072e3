"""A command `python` that starts in milliseconds: a process that has imported torch forks for it.

For what starts Python itself, such as a shell script, make or torchrun.
"""

import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests import forkserver
from tests.entry_point.job import isolated_host
from tests.entry_point.training import forked_ranks

COMMAND = """#!{python} -SE
import json, os, socket, sys

arguments = [each for each in sys.argv[1:] if each not in ("-u", "-I")]
message = json.dumps([arguments, os.getcwd(), dict(os.environ)]).encode()
with socket.socket(socket.AF_UNIX) as server:
    server.connect({address!r})
    socket.send_fds(server, [len(message).to_bytes(8, "big")], [1, 2])
    server.sendall(message)
    os._exit(int(server.recv(16)))
"""


FORKS = ".venv/bin/forks"
"""In a copy of this tree, whose packages a program then imports."""


@contextmanager
def forked_python(path: Path, *, isolated: bool = False) -> Iterator[None]:
    """Write the command `path`, which runs `python -m MODULE` and `-c CODE` until the block ends.

    The programs, and the ranks of a job among them, are forked. Their output must go to a file.
    `isolated`: on a host of their own, as `tests/entry_point/job/isolated_host.py` makes it.
    """
    if isolated:
        isolated_host.require()
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        address = f"{folder}/python"
        listener.bind(address)
        listener.listen(16)
        path.write_text(COMMAND.format(python=sys.executable, address=address))
        path.chmod(0o755)
        server = forkserver.SERVER.Process(target=_serve, args=(listener, isolated))
        server.start()
        yield
        with socket.socket(socket.AF_UNIX) as end:
            end.connect(address)  # and says nothing
        server.join(60)
        assert server.exitcode == 0


@contextmanager
def forking_environment(tree: Path) -> Iterator[None]:
    """Give a copy of this tree `.venv`: the environment that runs the tests, whose `python` is
    `forks`, which forks until the block ends. `python3` is the usual one."""
    ours, copy = Path(sys.executable).parents[1], tree / ".venv"  # not resolved: of an environment
    (copy / "bin").mkdir(parents=True)
    for file in (*ours.iterdir(), *(ours / "bin").iterdir()):
        if file.name not in ("bin", "python"):
            (copy / file.relative_to(ours)).symlink_to(file)
    (copy / "bin" / "python").symlink_to("forks")
    with forked_python(tree / FORKS):
        yield


def _prepare(folder: str, descriptors: Sequence[int]) -> None:
    os.chdir(folder)
    if (forks := Path(folder) / FORKS).exists():
        sys.executable = str(forks)  # what a program starts, or becomes
    for descriptor in descriptors:
        os.close(descriptor)
    forked_ranks.prepare()


def _serve(listener: socket.socket, isolated: bool) -> None:
    if isolated:
        isolated_host.enter()
    while True:
        caller, _ = listener.accept()
        header, descriptors, _, _ = socket.recv_fds(caller, 8, 2)
        if not header:
            break
        if not os.fork():
            listener.close()
            _answer(caller, int.from_bytes(header, "big"), *descriptors)
        for descriptor in (caller.detach(), *descriptors):
            os.close(descriptor)
    while True:
        try:
            os.wait()
        except ChildProcessError:
            return


def _answer(caller: socket.socket, length: int, output: int, errors: int) -> None:
    """Run the program in a child, and tell the caller its exit code."""
    with caller, caller.makefile("rb") as received:
        arguments, folder, environment = json.loads(received.read(length))
        if not (program := os.fork()):
            prepare = partial(_prepare, folder, (caller.fileno(), output, errors))
            log, problems = (Path(f"/dev/fd/{number}") for number in (output, errors))
            tree = Path(folder) if (Path(folder) / FORKS).exists() else None
            forkserver.become(arguments, log, problems, environment, tree, prepare)
            raise SystemExit
        _, status = os.waitpid(program, 0)
        caller.sendall(str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)
