"""A host without a network that cannot resolve its own name, as `--network none` makes it."""

import ctypes
import fcntl
import os
import socket
import struct
import subprocess
from pathlib import Path

from tests.needs import lacks

_SET_FLAGS, _UP_AND_RUNNING = 0x8914, 0x1 | 0x40
_NEW_USER_NET_AND_NAME = 0x10000000 | 0x40000000 | 0x04000000


def require() -> None:
    """Skip the test where no process may `enter`, as in a container with its engine's defaults."""
    command = ["unshare", "--map-root-user", "--net", "--uts", "true"]
    if subprocess.run(command, capture_output=True).returncode:
        lacks("a network of its own (unshare)", "in a container, start it with --privileged")


def enter() -> None:
    """Move this process, which must have one thread, to such a host, as `unshare` does."""
    user, group = os.getuid(), os.getgid()
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_USER_NET_AND_NAME):
        raise OSError(ctypes.get_errno(), "unshare")
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    with socket.socket() as request:
        # A new network namespace has a loopback device, which is down.
        fcntl.ioctl(request, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP_AND_RUNNING))
    socket.sethostname("a-name-that-nobody-knows")
