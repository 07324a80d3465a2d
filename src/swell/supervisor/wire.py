"""A channel on the selector of a loop: it is heard when something comes, and what waits is sent when there is room."""

from __future__ import annotations

import contextlib
import selectors
from collections.abc import Callable, Mapping
from typing import Any

from swell.supervisor.channel import Channel, encode


class Wire:
    """Calls ``hear`` whenever the channel may have messages or has ended. Keys of the selector hold what to call."""

    def __init__(self, channel: Channel, selector: selectors.BaseSelector, hear: Callable[[], object]) -> None:
        self.channel = channel
        self._selector, self._hear = selector, hear
        self._events = selectors.EVENT_READ
        selector.register(channel, self._events, self._ready)

    def send(self, message: Mapping[str, Any]) -> bool:
        """Send one message, now or when there is room; False when the other end is gone or does not read."""
        return self.send_line(encode(message))

    def send_line(self, line: bytes) -> bool:
        """Send a message that is encoded already."""
        sent = self.channel.send_line(line)
        self._follow()
        return sent

    def forget(self) -> None:
        """Stop waiting for it; may be called twice."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(self.channel)
        self._events = 0

    def close(self) -> None:
        """Stop waiting and close this end; may be called twice."""
        self.forget()
        self.channel.close()

    def _ready(self) -> None:
        if self.channel.unsent:
            self.channel.flush()
            self._follow()
        self._hear()

    def _follow(self) -> None:
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if self.channel.unsent else 0)
        if self._events and events != self._events:
            self._selector.modify(self.channel, events, self._ready)
            self._events = events
