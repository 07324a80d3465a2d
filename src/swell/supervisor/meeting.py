"""What the members of the newest generation tell one another before they are connected: names and values."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any


class Meeting:
    """Passes on what one member says to all of them; everything is forgotten when the next generation is announced.

    A member hears of its generation before it hears of any value, so nobody has to ask again. Values travel as base64.

    >>> meeting = Meeting()
    >>> meeting.open(3)
    >>> meeting.take(5, {"say": "set", "number": 3, "key": "address", "value": "YQ=="})
    >>> meeting.news()
    [(None, {'say': 'keys', 'number': 3, 'values': {'address': 'YQ=='}})]
    >>> meeting.news()
    []
    """

    def __init__(self) -> None:
        self._number = 0
        self._fresh: dict[str, str] = {}
        self._counters: dict[str, int] = {}
        self._replies: list[tuple[int | None, dict[str, Any]]] = []

    def open(self, number: int) -> None:
        """A generation was announced; what is said in an earlier one is not passed on any more."""
        self._number = number
        self._fresh, self._counters, self._replies = {}, {}, []

    def take(self, member: int, message: Mapping[str, Any]) -> None:
        """A member sets a value, or adds to a counter and wants to know its new value."""
        if message["number"] != self._number:
            return
        key = str(message["key"])
        if message["say"] == "set":
            self._fresh[key] = str(message["value"])
            return
        self._counters[key] = total = self._counters.get(key, 0) + int(message["amount"])
        self._fresh[key] = base64.b64encode(str(total).encode()).decode()  # as torch's stores keep counters
        reply = {"say": "sum", "number": self._number, "ticket": message["ticket"], "total": total}
        self._replies.append((member, reply))

    def news(self) -> list[tuple[int | None, dict[str, Any]]]:
        """Messages that are due since the last call, each with the worker that gets it; None for all workers."""
        news, self._replies = self._replies, []
        if self._fresh:
            fresh, self._fresh = self._fresh, {}
            news = [(None, {"say": "keys", "number": self._number, "values": fresh}), *news]
        return news
