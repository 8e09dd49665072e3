"""Runs a command as on a host without a network that cannot resolve its own name.

`unshare --map-root-user --net --uts python isolated_host.py COMMAND`, as `--network none` does.
"""

import fcntl
import os
import socket
import struct
import sys

_SET_FLAGS, _UP_AND_RUNNING = 0x8914, 0x1 | 0x40

if __name__ == "__main__":
    with socket.socket() as request:
        # A new network namespace has a loopback device, which is down.
        fcntl.ioctl(request, _SET_FLAGS, struct.pack("16sh14x", b"lo", _UP_AND_RUNNING))
    socket.sethostname("a-name-that-nobody-knows")
    os.execv(sys.argv[1], sys.argv[1:])
