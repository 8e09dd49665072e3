"""Says which of several ranks the others wait for.

A rank that hangs, in a read or in your code, keeps the others in their next exchange until its
timeout. All ranks take part in the same exchanges in the same order, so each counts those that it
has reached: who has reached fewer is whom the others wait for. A thread of each rank publishes its
count, and that the process still answers.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass

from torch.distributed import Store  # type: ignore[attr-defined]

logger = logging.getLogger(__name__)

PATIENCE_S = 30.0
"""How long others wait before a line says so."""
EVERY_S = 5.0


@dataclass
class _Seen:
    """What a rank published last, and since when each number is the same."""

    reached: int = -1
    beat: int = -1
    place: str = "its process"
    reached_at: float = 0.0
    answered_at: float = 0.0
    reported: bool = False


class RankWatch:
    """One rank's part of the watch. The first rank watches the others, and the second the first."""

    def __init__(self, store: Store, rank: int, ranks: int) -> None:
        self._store, self._rank = store.clone(), rank
        self._reached, self._beat = 0, 0
        self._place = f"process {os.getpid()} on {socket.gethostname()}"
        watched: Iterable[int] = {0: range(1, ranks), 1: [0]}.get(rank, ())
        now = time.monotonic()
        self._seen = {each: _Seen(reached_at=now, answered_at=now) for each in watched}
        self._highest, self._highest_at = 0, now
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="rank watch", daemon=True).start()

    def arrive(self) -> None:
        """Count an exchange that this rank has reached; the others may wait for it there."""
        self._reached += 1

    def close(self) -> None:
        """End the watch."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._publish()
                for rank, seen in self._seen.items():
                    self._read(rank, seen)
            except RuntimeError:  # the store has gone with the first rank, or with the job
                return
            self._report(time.monotonic())
            self._ended.wait(EVERY_S)

    def _publish(self) -> None:
        self._beat += 1
        self._store.set(_key(self._rank), json.dumps([self._reached, self._beat, self._place]))

    def _read(self, rank: int, seen: _Seen) -> None:
        if not self._store.check([_key(rank)]):
            return
        reached, beat, seen.place = json.loads(self._store.get(_key(rank)))
        now = time.monotonic()
        if reached != seen.reached:
            seen.reached, seen.reached_at, seen.reported = reached, now, False
        if beat != seen.beat:
            seen.beat, seen.answered_at = beat, now

    def _report(self, now: float) -> None:
        highest = max([self._reached, *(seen.reached for seen in self._seen.values())])
        if highest != self._highest:
            self._highest, self._highest_at = highest, now
        for rank, seen in self._seen.items():
            waited = min(now - seen.reached_at, now - self._highest_at)
            silent = now - seen.answered_at
            if seen.reported:
                continue
            if silent > PATIENCE_S or (seen.reached < highest and waited > PATIENCE_S):
                seen.reported = True
                logger.warning(
                    "rank %d (%s) has not answered for %.0f s, and the other ranks wait for it; "
                    "py-spy dump shows what that process does",
                    *(rank, seen.place, max(silent, waited)),
                )


def _key(rank: int) -> str:
    return f"watch/{rank}"
