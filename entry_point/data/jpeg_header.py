"""What the packed index needs from a JPEG's header and the operator does not tell."""

from __future__ import annotations

_SOS, _DRI = 0xDA, 0xDD


def restart_interval(jpeg: bytes) -> int:
    """MCUs between restart markers, 0 for none. For files that decode."""
    place, interval = 2, 0
    while place + 4 <= len(jpeg):
        marker, length = jpeg[place + 1], int.from_bytes(jpeg[place + 2 : place + 4], "big")
        if marker == 0xFF:  # fill byte
            place += 1
            continue
        if marker == _DRI:
            interval = int.from_bytes(jpeg[place + 4 : place + 6], "big")
        if marker == _SOS:
            break
        place += 2 + length
    return interval
