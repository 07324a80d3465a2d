"""The slow, obvious twin of the metrics: keep every value that was added, and work results out from the list."""

from __future__ import annotations

from dataclasses import dataclass, field

Entry = tuple[str, float, float | None]  # name, value, weight; no weight in a plain sum


@dataclass
class KeptMetrics:
    """Lists of what was added: in the step in progress, after the latest one, in committed steps, in this epoch."""

    pending: list[Entry] = field(default_factory=list)
    late: list[Entry] = field(default_factory=list)
    committed: list[Entry] = field(default_factory=list)
    epoch: list[Entry] = field(default_factory=list)
    between: bool = False

    def add(self, entry: Entry) -> None:
        (self.late if self.between else self.pending).append(entry)

    def commit(self) -> None:
        self.committed += [*self.pending, *self.late]
        self.epoch += [*self.pending, *self.late]
        self.pending, self.late, self.between = [], [], True

    def drop(self) -> None:
        self.pending = []

    def results(self, *, reset: bool) -> dict[str, float]:
        results = over(self.committed)
        if reset:
            self.committed = []
        return results

    def end_epoch(self) -> dict[str, float]:
        results, self.epoch = over(self.epoch), []
        return results


def over(entries: list[Entry]) -> dict[str, float]:
    """Weighted means and plain sums, by name."""
    results = {}
    for name in sorted({name for name, _, _ in entries}):
        mine = [(value, weight) for other, value, weight in entries if other == name]
        if mine[0][1] is None:
            results[name] = float(sum(value for value, _ in mine))
        else:
            weights = sum(weight or 0.0 for _, weight in mine)
            results[name] = sum(value * (weight or 0.0) for value, weight in mine) / (weights or 1.0)
    return results
