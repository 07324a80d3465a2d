"""What swell does, seen in a minute: one small network on handwritten digits, trained three ways."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console

import swell
from swell.core.protocols import Policy
from swell.demo.scoreboard import Scoreboard
from swell.demo.training import BASE_BATCH, EPOCHS, Result, train
from swell.telemetry import LOG_NAME, compare, read_events

LARGE_BATCH = 128


@dataclass(frozen=True, kw_only=True)
class Way:
    """How one of the runs chooses its batch, and what its learning rate follows."""

    folder: str
    batch: int | Policy
    rule: str
    micro: int  # samples that go through the network at once


def ways() -> dict[str, Way]:
    """The three runs, by the names the table gives them."""
    growing = swell.Hysteresis(swell.NoiseScale(BASE_BATCH, max=LARGE_BATCH), change=0.25)
    half = BASE_BATCH // 2  # noise is seen in how the parts of a step differ, so every step shall have two or more
    return {
        "small batch": Way(folder="small", batch=BASE_BATCH, rule="constant", micro=BASE_BATCH),
        "large batch": Way(folder="large", batch=LARGE_BATCH, rule="constant", micro=LARGE_BATCH),
        "swell": Way(folder="swell", batch=growing, rule="adascale", micro=half),
    }


def show(out: Path, *, seed: int = 0) -> dict[str, Result]:
    """Train three ways, show the results side by side, and draw ``out/demo.png``. Runs of an earlier demo are replaced.

    The same seed gives the same numbers.
    """
    console = Console(highlight=False)
    console.print("One network, one learning rate, three ways to choose the batch size:\n")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors this small are quickest so, and sums do not depend on the number of cores
    results: dict[str, Result] = {}
    folders: dict[str, Path] = {}
    try:
        with Scoreboard(list(ways()), console=console) as board:
            for name, way in ways().items():
                folders[name] = _empty(out / way.folder)
                results[name] = train(
                    folders[name], batch=way.batch, rule=way.rule, micro=way.micro, seed=seed, sink=board.sink(name)
                )
                board.finish(name, results[name])
    finally:
        torch.set_num_threads(threads)
    console.print(_in_words(*results.values()))
    picture = compare({name: read_events(folder / LOG_NAME) for name, folder in folders.items()}, out / "demo.png")
    console.print(f"\nLoss, batch size and gain are drawn in {picture}; the events of each run are beside it.")
    return results


def _empty(folder: Path) -> Path:
    """The folder without the run an earlier demo left there, which would otherwise be resumed at its end."""
    if (folder / LOG_NAME).exists():
        shutil.rmtree(folder)
    return folder


def _in_words(small: Result, large: Result, swelled: Result) -> str:
    return (
        f"The learning rate was tuned for batches of {BASE_BATCH}. With batches of {LARGE_BATCH} and nothing else "
        f"changed, {EPOCHS} passes end at {large.accuracy:.1%}. swell grew the batch with the gradient noise and let "
        f"the learning rate follow: {swelled.accuracy:.1%} against {small.accuracy:.1%}, in "
        f"{swelled.steps / small.steps:.0%} of the steps."
    )
