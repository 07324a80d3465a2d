"""A run as one JSON document: everything that a page shows, thinned to what a screen can draw."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from swell.core.events import (
    BatchChanged,
    EpochEnded,
    Event,
    Faulted,
    Noticed,
    Resized,
    RunEnded,
    RunStarted,
    Saved,
    Stepped,
    StepSkipped,
    Warned,
)
from swell.telemetry.decisions import Account, account_of
from swell.telemetry.predictions import Predictions
from swell.telemetry.run_model import Note, RunModel
from swell.telemetry.run_summary import compact, duration
from swell.telemetry.sentences import sentence
from swell.telemetry.series import smoothed
from swell.telemetry.time_account import WORDS

POINTS = 3000  # rows of one run in a page
_MOST_DECISIONS, _MOST_MARKS = 300, 400
_KINDS: dict[type[Event], str] = {
    RunStarted: "start",
    RunEnded: "end",
    Resized: "resize",
    Saved: "save",
    Noticed: "notice",
    Faulted: "fault",
    StepSkipped: "skip",
    Warned: "warning",
    BatchChanged: "batch",
    EpochEnded: "epoch",
}
# Columns of a document, by the name in the page; those after the fourth can be drawn.
_COLUMNS = {
    "samples": "samples",
    "step": "step",
    "progress": "progress",
    "time": "active",
    "loss": "loss",
    "batch": "batch",
    "workers": "replicas",
    "lr": "lr",
    "factor": "lr_factor",
    "gain": "gain",
    "noise": "noise",
    "low": "noise_low",
    "high": "noise_high",
}


class RunDocument:
    """Builds the documents of one run; remembers reasons and predictions, which are slow to find."""

    def __init__(self, model: RunModel, *, name: str) -> None:
        self.model, self.name = model, name
        self._predictions = Predictions()
        self._accounts: dict[int, Account | None] = {}

    def whole(self, *, state: str, problem: str | None = None, points: int = POINTS) -> dict[str, Any]:
        """All of the run, its rows thinned to about ``points``."""
        columns, over = self._columns()
        keep = kept(columns, points=points)
        return {
            **self.tail(state=state, problem=problem),
            "columns": {name: _plain_numbers(np.asarray(column, float)[keep]) for name, column in columns.items()},
            "over": over,
        }

    def rows(self, first: int) -> dict[str, list[float | None]]:
        """The rows from ``first`` on, as they are."""
        columns = {name: self.model.columns[of][first:] for name, of in _COLUMNS.items()}
        speed = _speeds(self.model.columns["batch"][first:], self.model.columns["step_s"][first:])
        return {name: _plain_numbers(np.asarray(column, float)) for name, column in {**columns, "speed": speed}.items()}

    def tail(self, *, state: str, problem: str | None = None) -> dict[str, Any]:
        """What is small, and new with every step: summary, marks, decisions, where the time went."""
        model, latest, started = self.model, self.model.latest, self.model.started
        return {
            "name": self.name,
            "state": state,
            "problem": problem,
            "num_steps": model.num_steps,
            "rewinds": model.rewinds,
            "done": model.done,
            "left": None if model.left is None or state != "running" else str(model.left),
            "facts": facts(model),
            "metrics": finite(model.metrics),
            "marks": [_mark(note) for note in self._marked()],
            "decisions": self._decisions(),
            "account": [
                {"kind": kind, "words": WORDS[kind], "seconds": round(seconds, 3)}
                for kind, seconds in model.account.parts().items()
            ],
            "settings": _pairs(started),
            "machine": [] if started is None else [[key, str(value)] for key, value in started.machine.items()],
            "workers": None if latest is None else latest.replicas,
        }

    def _columns(self) -> tuple[dict[str, Any], float]:
        model = self.model
        columns: dict[str, Any] = {name: model.columns[of] for name, of in _COLUMNS.items()}
        if not model.num_steps:
            return {**columns, "smooth": [], "speed": [], "predicted": []}, 1.0
        chosen = _without_cut_steps(model)
        for name in ("batch", "gain", "factor"):
            columns[name] = np.asarray(columns[name], float)[chosen]
        samples, batch = np.asarray(columns["samples"], float), np.asarray(model.columns["batch"], float)
        over = max(float(samples[-1]) / 50, 2 * float(np.median(batch)))
        columns["smooth"] = smoothed(np.asarray(columns["loss"], float), samples, over=over)
        speed = _speeds(model.columns["batch"], model.columns["step_s"])
        columns["speed"] = smoothed(speed, samples, over=max(float(samples[-1]) / 200, 2 * float(np.median(batch))))
        columns["predicted"] = self._predicted()
        return columns, over

    def _predicted(self) -> np.ndarray:
        """The predicted speed at each step; not-a-number where nothing was predicted."""
        model, result = self.model, np.full(self.model.num_steps, np.nan)
        changes = [note for note in model.notes if isinstance(note.event, BatchChanged)]
        firsts = [min(bisect_right(model.columns["samples"], note.samples), model.num_steps - 1) for note in changes]
        columns = [model.columns[name] for name in ("replicas", "micro", "accumulation", "batch")]
        layouts = [tuple(int(column[first]) for column in columns) for first in firsts]
        events = [note.event for note in changes]
        speeds = self._predictions.speeds(events, layouts)  # pyright: ignore[reportArgumentType]
        for number, (first, speed) in enumerate(zip(firsts, speeds, strict=True)):
            end = firsts[number + 1] if number + 1 < len(firsts) else model.num_steps
            if speed is not None:
                result[first:end] = speed
        return result

    def _marked(self) -> list[Note]:
        kinds = ("start", "end", "resize", "notice", "fault", "skip")
        notes = [note for note in self.model.notes if _KINDS[type(note.event)] in kinds]
        saves = [note for note in self.model.notes if isinstance(note.event, Saved)][-_MOST_MARKS // 4 :]
        return sorted(notes[-_MOST_MARKS:] + saves, key=lambda note: note.active)

    def _decisions(self) -> list[dict[str, Any]]:
        """Every change with its reasons, and everything else worth a sentence, oldest first."""
        rows: list[dict[str, Any]] = []
        for note in self.model.notes[-_MOST_DECISIONS:]:
            key = id(note.event)
            if key not in self._accounts:
                self._accounts[key] = account_of(note.event)
            account = self._accounts[key]
            text = account.headline if account is not None else sentence(note.event)
            if text is not None:
                reasons = [] if account is None else list(account.reasons)
                kind = _KINDS[type(note.event)]
                rows.append({**_place(note), "kind": kind, "text": _capital(text), "reasons": reasons})
        return rows


def finite(metrics: dict[str, float]) -> dict[str, float | None]:
    """The metrics as JSON can hold them."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def kept(columns: dict[str, Any], *, points: int) -> np.ndarray:
    """The rows that a page gets."""
    from swell.telemetry.thinning import kept_rows

    extremes = [columns[name] for name in ("loss", "speed")]
    return kept_rows(columns["samples"], extremes, [columns["batch"], columns["workers"]], points=points)


def facts(model: RunModel) -> list[list[str]]:
    """The newest figures of a run: labels and values."""
    latest, left = model.latest, model.left
    if latest is None:
        return []
    began = model.epoch_started
    epochs = f" of {began.epochs}" if began is not None and began.epochs else ""
    of = f" of {compact(began.total_samples)}" if began is not None and began.total_samples else ""
    rows = [
        ["epoch", f"{latest.epoch + 1}{epochs}"],
        ["samples", f"{compact(latest.samples)}{of}"],
        ["steps", f"{latest.step:,}"],
        ["progress", f"{compact(latest.progress)} base steps"],
        ["workers", str(latest.replicas)],
        ["batch", batch_words(latest)],
        ["lr factor", ", ".join(f"×{factor:.3g}" for factor in dict.fromkeys(latest.lr_factor))],
        ["gain", f"{latest.gain:.3g}"],
        ["noise scale", noise_words(latest.noise_scale, latest.noise_low, latest.noise_high)],
        ["loss", "" if latest.loss is None else f"{latest.loss:.4g}"],
        ["samples a second", "" if model.samples_per_s is None else compact(model.samples_per_s)],
        ["goodput", "" if model.goodput is None else f"{compact(model.goodput)} base samples/s"],
        ["time so far", duration(model.active_s)],
        ["time left", "" if left is None or model.ended is not None else str(left)],
    ]
    rows += [[f"{name}, last epoch", f"{value:.4g}"] for name, value in model.metrics.items()]
    return [row for row in rows if row[1]]


def batch_words(step: Stepped) -> str:
    """A step's batch and layout: largest micro-batch × accumulation × workers, which is more where shares differ."""
    whole = step.micro_batch * step.accumulation * step.replicas
    sign = "=" if step.global_batch == whole else "≤"
    return f"{step.global_batch:,} {sign} {step.micro_batch} × {step.accumulation} × {step.replicas}"


def noise_words(scale: float | None, low: float | None, high: float | None) -> str:
    """A noise scale with its interval, in samples.

    >>> noise_words(812.0, 640.0, 1010.0), noise_words(None, None, None), noise_words(5.0, 0.0, math.inf)
    ('812 (640 to 1,010)', '', '5 (0 to ∞)')
    """
    if scale is None or math.isnan(scale):
        return ""
    text = "∞" if math.isinf(scale) else compact(scale)
    if low is None or high is None:
        return text
    return f"{text} ({compact(low)} to {'∞' if math.isinf(high) else compact(high)})"


def _without_cut_steps(model: RunModel) -> np.ndarray:
    """For each row the row whose batch to draw: an epoch's short last step is not a decision."""
    batch, epoch = (np.asarray(model.columns[name], float) for name in ("batch", "epoch"))
    rows = np.arange(len(batch))
    last = np.append(epoch[1:] != epoch[:-1], True)
    same = np.concatenate([[False], epoch[1:] == epoch[:-1]])
    cut = last & same & (batch < np.concatenate([[np.inf], batch[:-1]])) & (rows > 0)
    return np.maximum.accumulate(np.where(cut, 0, rows))


def _speeds(batch: Sequence[float], step_s: Sequence[float]) -> np.ndarray:
    seconds = np.asarray(step_s, float)
    return np.where(seconds > 0, np.asarray(batch, float) / np.where(seconds > 0, seconds, 1.0), np.nan)


def _place(note: Note) -> dict[str, Any]:
    place = {"step": note.step, "samples": note.samples, "progress": note.progress, "time": note.active}
    return {name: float(f"{value:.7g}") if isinstance(value, float) else value for name, value in place.items()}


def _mark(note: Note) -> dict[str, Any]:
    return {**_place(note), "kind": _KINDS[type(note.event)], "text": _capital(sentence(note.event) or "")}


def _pairs(started: RunStarted | None) -> list[list[str]]:
    if started is None:
        return []
    known = {
        "policy": started.policy,
        "rule": started.rule,
        "base batch": f"{started.base_batch:,}",
        "seed": str(started.seed),
        "swell": started.version,
    }
    rest = {key.replace("_", " "): str(value) for key, value in started.settings.items()}
    return [[key, value] for key, value in {**known, **rest}.items() if key != "base"]


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _plain_numbers(values: Iterable[float]) -> list[float | int | None]:
    """Numbers with six significant digits, whole ones without a point, None for what is not finite."""
    plain: list[float | int | None] = []
    for value in np.asarray(values, float).tolist():
        if not math.isfinite(value):
            plain.append(None)
        elif value == int(value) and abs(value) < 1e15:
            plain.append(int(value))
        else:
            plain.append(float(f"{value:.5g}"))
    return plain
