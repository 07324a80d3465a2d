"""Short lines for steps: what changes with every step as a few numbers, everything else only when it has changed.

A whole step is about 450 bytes. A short line holds the difference to the step before it in the same file:

    [ms since that step, step_s in ms, loss, data_s in ms, measured, {fields that changed}]

Trailing items that are 0 or empty are left out, so most lines are about 16 bytes. ``step`` and ``samples`` count on by
one step and its batch; ``progress`` grows by ``gain``. Fields that change slowly (learning rate, gain, noise) may be as
old as the last line that held them. The loss has five significant digits, times have three, other numbers six.
"""

from __future__ import annotations

import json
import math
from typing import Any

from swell.core.events import Event, Stepped, to_json

# In the order of a short line's last item; the keys keep it short.
_SLOW = {
    "b": "global_batch",
    "m": "micro_batch",
    "a": "accumulation",
    "w": "replicas",
    "r": "lr",
    "f": "lr_factor",
    "g": "gain",
    "p": "progress",
    "s": "signal",
    "n": "noise",
    "c": "noise_scale",
    "l": "noise_low",
    "h": "noise_high",
}
_STRUCTURE = {key: _SLOW[key] for key in "bmaw"}  # never out of date
_COMPACT = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_LONGEST_MS = 10**6
_MOST_IN_A_ROW = 400  # short lines, after which a whole one follows: a reader may begin anywhere


class StepWriter:
    """Turns steps into lines, whole or short, so that the log keeps to a number of bytes an hour.

    ``burst`` bytes may be written at once, which is enough for about two hundred whole lines. After that about ``rate``
    bytes a second are used: whole lines if steps are seldom, lines with all fields that changed if they are more
    frequent (less than ``reserve`` is left), and at ten steps a second the shortest, with the slow fields every few
    seconds.
    """

    def __init__(self, *, burst: float = 100_000.0, rate: float = 194.0, reserve: float = 10_000.0) -> None:
        self._burst, self._rate, self._reserve = burst, rate, reserve
        self._room, self._filled_at = burst, -math.inf
        self._known: dict[str, Any] | None = None  # the step before, as a reader knows it
        self._since_whole = 0

    def forget(self) -> None:
        """The next line is whole: something else may be in the file before it."""
        self._known = None

    def line(self, event: Stepped) -> str:
        """The line for the next step, without its newline."""
        if event.time > self._filled_at:
            since = 0.0 if self._filled_at == -math.inf else event.time - self._filled_at
            self._room, self._filled_at = min(self._burst, self._room + self._rate * since), event.time
        text = self._short(event)
        if text is None:
            text, self._known, self._since_whole = to_json(event), dict(vars(event)), 0
        else:
            self._since_whole += 1
        self._room -= len(text) + 1
        return text

    def _short(self, event: Stepped) -> str | None:
        """The step as a short line; None if it must be whole, or if there is room for that."""
        known = self._known
        if known is None or self._since_whole >= _MOST_IN_A_ROW or self._room > self._reserve:
            return None
        loss, passed_ms = event.loss, round(1000 * (event.time - known["time"]))
        follows = event.step == known["step"] + 1 and event.epoch == known["epoch"]
        if not follows or event.samples != known["samples"] + event.global_batch or not 0 <= passed_ms <= _LONGEST_MS:
            return None
        if not math.isfinite(event.step_s) or (loss is not None and not math.isfinite(loss)):
            return None
        if event.data_s is None and known["data_s"] is not None:
            return None
        # Without room only what would be wrong is written, not what would be a little old.
        among, new, progress = _SLOW if self._room > 0 else _STRUCTURE, vars(event), known["progress"] + known["gain"]
        known["progress"] = progress  # as a reader expects it; a whole line replaces all of ``known``
        changed = {
            key: new[name]
            for key, name in among.items()
            if known[name] != new[name] and _differs(known[name], new[name])
        }
        if changed and not all(_plain(value) for value in changed.values()):
            return None
        changed = {key: _rounded(value) for key, value in changed.items()}
        loss = loss if loss is None else float(f"{loss:.5g}")
        data_ms = round(1000 * event.data_s) if event.data_s else 0
        known["time"] += passed_ms / 1000
        known["step"], known["samples"] = event.step, event.samples
        known["data_s"] = None if known["data_s"] is None and not data_ms else data_ms / 1000
        for key, value in changed.items():
            known[_SLOW[key]] = tuple(value) if isinstance(value, list) else value
        return _text(passed_ms, float(f"{1000 * event.step_s:.3g}"), loss, data_ms, event.measured, changed)


def _text(passed_ms: int, step_ms: float, loss: float | None, data_ms: int, measured: bool, changed: Any) -> str:
    """The line, written by hand because every step has one: JSON writes numbers as ``repr`` does."""
    start = f"[{passed_ms},{step_ms!r}"
    if changed or measured or data_ms or loss != 0.0:
        start += f",{'null' if loss is None else repr(loss)}"
    if changed or measured or data_ms:
        start += f",{data_ms}"
    if changed or measured:
        start += f",{int(measured)}"
    return f"{start},{_COMPACT.encode(changed)}]" if changed else f"{start}]"


class StepReader:
    """Gives back the steps of a log from its lines, in the file's order."""

    def __init__(self) -> None:
        self._known: dict[str, Any] | None = None

    def whole(self, event: Event) -> None:
        """A whole line was read."""
        if isinstance(event, Stepped):
            self._known = dict(vars(event))

    def short(self, items: list[Any]) -> Stepped | None:
        """The step of a short line; None if the line it refers to was not read, or if it is no such line."""
        if self._known is None:
            return None
        try:
            changed = items[5] if len(items) > 5 else {}
            batch = int(changed.get("b", self._known["global_batch"]))
            known = _applied(_following(self._known, float(items[0]), batch), items)
        except (TypeError, ValueError, IndexError, KeyError, AttributeError):
            return None
        self._known = known
        event = Stepped.__new__(Stepped)  # without its constructor, which is slow and has nothing to check
        vars(event).update(known)
        return event


def _following(known: dict[str, Any], passed_ms: float, batch: int) -> dict[str, Any]:
    """What a reader expects of the next step where its line names no field."""
    guess = known.copy()
    guess["time"] = known["time"] + passed_ms / 1000
    guess["step"] = known["step"] + 1
    guess["samples"] = known["samples"] + batch
    guess["progress"] = known["progress"] + known["gain"]
    return guess


def _applied(guess: dict[str, Any], items: list[Any]) -> dict[str, Any]:
    """The guess with the items of a short line."""
    count = len(items)
    loss, data_ms = items[2] if count > 2 else 0.0, items[3] if count > 3 else 0
    guess["step_s"] = float(items[1]) / 1000
    guess["loss"] = None if loss is None else float(loss)
    guess["data_s"] = None if guess["data_s"] is None and not data_ms else data_ms / 1000
    guess["measured"] = bool(items[4]) if count > 4 else False
    for key, value in (items[5] if count > 5 else {}).items():
        if key in _SLOW:
            guess[_SLOW[key]] = tuple(value) if isinstance(value, list) else value
    return guess


def _differs(old: Any, new: Any) -> bool:
    if isinstance(old, tuple) and isinstance(new, tuple):
        return len(old) != len(new) or any(_differs(one, other) for one, other in zip(old, new, strict=True))
    if old is None or new is None or isinstance(old, tuple) or isinstance(new, tuple):
        return old is not new
    return old != new and not math.isclose(old, new, rel_tol=2e-6)


def _rounded(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_rounded(item) for item in value]
    return value if value is None or isinstance(value, int) else float(f"{value:.6g}")


def _plain(value: Any) -> bool:
    """Whether JSON can hold the value as it is."""
    if isinstance(value, tuple):
        return all(_plain(item) for item in value)
    return value is None or (isinstance(value, (int, float)) and math.isfinite(value))
