"""A worker's link to its supervisor: the newest messages from it, and the heartbeat to it."""

from __future__ import annotations

import select
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from swell.supervisor.channel import Channel
from swell.supervisor.generation import Generation
from swell.supervisor.notice import EXIT_RESUME, Notice


class Dismissed(SystemExit):
    """There is no world for this worker any more; if not caught, this ends the process with the right status.

    0 if the others go on without it, 143 ("resume me") if the supervisor is gone and nobody can go on.
    """

    def __init__(self, reason: str, code: int = 0) -> None:
        super().__init__(code)
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class SupervisorLink:
    """Listens in its own thread, so that the newest messages can be read without waiting.

    The thread also sends the heartbeat. It stops when the process is stopped or another thread never releases the
    interpreter, and the supervisor notices that. Each beat carries the number of calls of ``step``, to distinguish a
    stuck worker from a busy one.
    """

    def __init__(self, channel: Channel, member: int, *, beat_s: float = 1.0) -> None:
        self.member = member
        self.newest: Generation | None = None
        self.notice: Notice | None = None
        self.on_generation: Callable[[Generation], None] = lambda generation: None  # called in the link's thread
        self._channel = channel
        self._beat_s = beat_s
        self._progress = 0
        self._release: str | None = None
        self._lost = False
        self._changed = threading.Condition()
        threading.Thread(target=self._listen, name="swell-link", daemon=True).start()

    def say(self, word: str, **facts: Any) -> None:
        """Send a message to the supervisor; the thread notices if the supervisor is gone."""
        self._channel.send({"say": word, **facts})

    def step(self) -> None:
        """Count a step for the heartbeat."""
        self._progress += 1

    def newer_than(self, number: int) -> Generation:
        """The newest generation above ``number`` that this worker is a member of; waits for it.

        Raises ``Dismissed`` if the worker was sent home or the supervisor is gone.
        """
        with self._changed:
            while True:
                newest = self.newest
                if self._release is not None:
                    raise self._dismissed(self._release)
                if newest is not None and newest.number > number:
                    if self.member in newest.members:
                        return newest
                    if self.member in newest.dismissed:
                        raise self._dismissed(f"the others went on without this worker in generation {newest.number}")
                if self._lost:
                    reason = (
                        "the supervisor is gone, so no new world can be formed: bring the run back with swell resume"
                    )
                    print(f"swell: {reason}", file=sys.stderr, flush=True)
                    raise Dismissed(reason, EXIT_RESUME)
                self._changed.wait()

    def _dismissed(self, reason: str) -> Dismissed:
        self.say("done")  # an interpreter ends slowly, and its heartbeat stops first
        return Dismissed(reason)

    def superseded(self, number: int) -> bool:
        """Whether generation ``number`` will not be formed any more."""
        newest = self.newest
        return self._lost or self._release is not None or (newest is not None and newest.number > number)

    def _listen(self) -> None:
        next_beat = time.monotonic()
        while True:
            now = time.monotonic()
            if now >= next_beat:
                self.say("beat", progress=self._progress)
                next_beat = now + self._beat_s
            ready, _, _ = select.select([self._channel.fileno()], [], [], max(0.0, next_beat - time.monotonic()))
            if not ready:
                continue
            messages = self._channel.receive()
            if messages is None:
                break
            for message in messages:
                self._take(message)
        with self._changed:
            self._lost = True
            if self.notice is None:
                self.notice = Notice(source="supervisor lost", time=time.time())
            self._changed.notify_all()

    def _take(self, message: dict[str, Any]) -> None:
        generation = None
        with self._changed:
            if message["say"] == "generation":
                self.newest = generation = Generation.from_message(message)
            elif message["say"] == "notice" and not message["leave"]:  # a leaver goes when its generation comes
                now, seconds_left = time.time(), message["seconds_left"]
                deadline = None if seconds_left is None else now + seconds_left
                self.notice = Notice(source=message["source"], time=now, deadline=deadline)
            elif message["say"] == "release":
                self._release = message["reason"]
            self._changed.notify_all()
        if generation is not None:
            self.on_generation(generation)
