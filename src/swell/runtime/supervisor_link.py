"""A worker's link to its supervisor: the newest messages from it, and the heartbeat to it."""

from __future__ import annotations

import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from swell.runtime.activity import MainThread
from swell.supervisor.channel import Channel
from swell.supervisor.generation import Call
from swell.supervisor.notice import EXIT_RESUME, Notice
from swell.supervisor.stall import Activity, describe_stall, stall_limit

_POLL_S = 5.0  # how often a worker that waits for a world says that it still waits


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
    interpreter, and the supervisor notices that. Each beat says what the main thread does and when it last made
    progress, to distinguish a stuck worker from a busy one.

    When the supervisor is gone, the thread goes on as its deputy (``on_orphaned``): it cuts the main thread loose from
    peers that do not answer, so that it can save, and ends a process whose main thread is stuck.
    """

    def __init__(self, channel: Channel, member: int, *, beat_s: float = 1.0) -> None:
        self.member = member
        self.newest: Call | None = None
        self.notice: Notice | None = None
        self.on_generation: Callable[[Call], None] = lambda generation: None  # called in the link's thread
        self.on_orphaned: Callable[[], None] = lambda: None  # likewise: nobody will announce another generation
        self.main = MainThread()
        self._channel = channel
        self._beat_s = beat_s
        self._grace_s, self._stall_s = 60.0, None
        self._release: str | None = None
        self._lost = False
        self._values: dict[str, str] = {}  # what members of the newest generation have set
        self._sums: dict[int, int] = {}  # answers to what this worker has added
        self._tickets = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._listen, name="swell-link", daemon=True).start()

    def say(self, word: str, **facts: Any) -> None:
        """Send a message to the supervisor; the thread notices if the supervisor is gone."""
        self._channel.send({"say": word, **facts})

    def step(self) -> None:
        """Count a step for the heartbeat; the first is told at once, because it says that the script works."""
        self.main.step()
        if self.main.steps == 1:
            self.say("beat", **self.main.report())

    @property
    def lost(self) -> bool:
        """Whether the supervisor is gone."""
        return self._lost

    def newer_than(self, number: int) -> Call:
        """The newest generation above ``number`` that this worker is a member of; waits for it.

        Raises ``Dismissed`` if the worker was sent home or the supervisor is gone.
        """
        with self._changed:
            while True:
                newest = self.newest
                if self._release is not None:
                    raise self._dismissed(self._release)
                if newest is not None and newest.number > number:
                    if newest.rank is not None:
                        return newest
                    if newest.dismissed:
                        raise self._dismissed(f"the others went on without this worker in generation {newest.number}")
                if self._lost:
                    reason = (
                        "the supervisor is gone, so no new world can be formed: bring the run back with swell resume"
                    )
                    print(f"swell: {reason}", file=sys.stderr, flush=True)
                    raise Dismissed(reason, EXIT_RESUME)
                self._changed.wait(_POLL_S)
                self.main.poll()

    def _dismissed(self, reason: str) -> Dismissed:
        self.say("done")  # an interpreter ends slowly, and its heartbeat stops first
        return Dismissed(reason)

    def superseded(self, number: int) -> bool:
        """Whether generation ``number`` will not be formed any more."""
        newest = self.newest
        return self._lost or self._release is not None or (newest is not None and newest.number > number)

    def meet(self, word: str, **facts: Any) -> int:
        """Say something to the other members of a generation; the number under which an answer comes."""
        self._tickets += 1
        self.say(word, ticket=self._tickets, **facts)
        return self._tickets

    def values(self, number: int) -> dict[str, str]:
        """What the members of a generation have set; nothing where it is not the newest."""
        with self._changed:
            return self._values if self._is_newest(number) else {}

    def sums(self, number: int) -> dict[int, int]:
        """Answers to what this worker has added in a generation."""
        with self._changed:
            return self._sums if self._is_newest(number) else {}

    def wait_for(self, condition: Callable[[], bool], *, timeout_s: float) -> bool:
        """Wait until the condition holds; it is asked again after each message."""
        with self._changed:
            return self._changed.wait_for(condition, timeout_s)

    def _is_newest(self, number: int) -> bool:
        return self.newest is not None and self.newest.number == number

    def _listen(self) -> None:
        next_beat = time.monotonic()
        while True:
            now = time.monotonic()
            if now >= next_beat:
                late_s = now - next_beat
                if late_s > 2 * self._beat_s + 1.0:
                    self.main.slept(late_s)
                self.say("beat", **self.main.report())
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
        self._watch_alone()

    def _watch_alone(self) -> None:
        """The supervisor is gone: see to it that this process saves what it can, and that it ends."""
        began_at, cut = time.monotonic(), False
        while True:
            before = time.monotonic()
            time.sleep(self._beat_s)
            if time.monotonic() - before > 3 * self._beat_s + 1.0:  # this process was stopped, and goes on now
                began_at += time.monotonic() - before
                self.main.slept(time.monotonic() - before)
            activity = Activity.from_message(self.main.report())
            since_s = time.monotonic() - began_at
            still_s, waited_s = min(activity.still_s, since_s), min(self.main.waited_s, since_s)
            patience_s = max(self._grace_s / 2, 2 * (activity.usual_s or 0.0))
            if activity.waiting and waited_s > patience_s and not cut:
                cut, began_at = True, time.monotonic()
                self.on_orphaned()
            elif activity.waiting and waited_s > patience_s:
                self._end_alone(f"has waited for others for {waited_s:.0f} s, who do not answer")
            elif still_s > stall_limit(activity, awaited=True, stall_s=self._stall_s):
                self._end_alone(describe_stall(activity, for_s=still_s, limit_s=still_s, stall_s=self._stall_s))

    def _end_alone(self, why: str) -> None:
        print(f"swell: the supervisor is gone and this worker {why}: it ends", file=sys.stderr, flush=True)
        end_own_session()

    def _take(self, message: dict[str, Any]) -> None:
        generation = None
        with self._changed:
            if message["say"] == "generation":
                self.newest = generation = Call.from_message(message)
                self._values, self._sums = {}, {}
            elif message["say"] == "keys" and self._is_newest(message["number"]):
                self._values.update(message["values"])
            elif message["say"] == "sum" and self._is_newest(message["number"]):
                self._sums[message["ticket"]] = message["total"]
            elif message["say"] == "notice" and not message["leave"]:  # a leaver goes when its generation comes
                now, seconds_left = time.time(), message["seconds_left"]
                deadline = None if seconds_left is None else now + seconds_left
                self.notice = Notice(source=message["source"], time=now, deadline=deadline)
            elif message["say"] == "release":
                self._release = message["reason"]
            elif message["say"] == "patience":
                self._grace_s, self._stall_s = message["grace_s"], message["stall_s"]
            self._changed.notify_all()
        if generation is not None:
            self.on_generation(generation)


def end_own_session() -> None:
    """End this process and those it started, without a word."""
    if os.getpgid(0) == os.getpid():  # it leads its group, as a worker of `swell run` does
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
