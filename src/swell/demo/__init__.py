"""What swell does, seen in a minute: one small network on handwritten digits, trained three ways and under fire."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.text import Text

from swell.demo.digits import load_digits
from swell.demo.history import ElasticRun, Moment
from swell.demo.proof import Claim, claims
from swell.demo.scoreboard import Scoreboard
from swell.demo.training import BASE_BATCH, LARGE_BATCH, PASSES, SWELL_PASSES, Result, train, ways
from swell.telemetry import LOG_NAME, compare, draw_timeline, read_events

ELASTIC = "swell, elastic"


@dataclass(frozen=True, kw_only=True)
class Shown:
    """What the demo has shown."""

    results: dict[str, Result]
    claims: list[Claim]
    pictures: list[Path]

    @property
    def holds(self) -> bool:
        """Whether everything that was claimed is true."""
        return all(claim.holds for claim in self.claims)


def show(out: Path, *, seed: int = 0, passes: int = SWELL_PASSES) -> Shown:
    """Train three ways and a fourth time on workers that come, go and die; show, check and draw what came of it.

    ``out/demo.png`` shows the elastic run over time, ``out/ways.png`` the three ways side by side. Runs of an earlier
    demo are replaced. ``SwellError`` where the elastic run does not come to its end.
    """
    console = Console(highlight=False)
    console.print("One network, one learning rate, three ways to choose the batch size;")
    console.print("and once more with swell, on workers that come, go and die:\n")
    results: dict[str, Result] = {}
    folders = {name: _empty(out / way.folder) for name, way in ways().items()}
    folder = _empty(out / "elastic")
    moments: list[Moment] = []
    with Scoreboard([*folders, ELASTIC], console=console) as board:
        for name, way in ways().items():
            results[name] = _undisturbed(folders[name], name, board, seed=seed, passes=min(passes, way.passes))
            board.finish(name, results[name])

        def tell(moment: Moment) -> None:
            moments.append(moment)
            board.tell(moment)

        size = len(load_digits()[0])
        board.begin("the same run starts once more, on one worker: swell run --workers 1:2")
        run = ElasticRun(folder, seed=seed, passes=passes, total=size * passes, sink=board.sink(ELASTIC), tell=tell)
        results[ELASTIC] = run.live()
        board.finish(ELASTIC, results[ELASTIC])
    console.print(_in_words(*(results[name] for name in ways())))
    events = list(read_events(folder / LOG_NAME))
    checked = claims(events, folder, results[ELASTIC], results["swell"], size=size, passes=passes)
    console.print("\nThe elastic run, by what its workers wrote down:")
    for claim in checked:
        console.print(_judged(claim))
    pictures = [
        draw_timeline(
            events,
            out / "demo.png",
            marks=[(moment.time, moment.mark) for moment in moments if moment.mark],
            beside={"undisturbed": read_events(folders["swell"] / LOG_NAME)},
        ),
        compare({name: read_events(folder / LOG_NAME) for name, folder in folders.items()}, out / "ways.png"),
    ]
    console.print(f"\nWorkers, batch, lr factor and loss over time: {pictures[0]}", soft_wrap=True)
    console.print(f"The three ways side by side: {pictures[1]}; each run's events are beside it.", soft_wrap=True)
    return Shown(results=results, claims=checked, pictures=pictures)


def _undisturbed(folder: Path, name: str, board: Scoreboard, *, seed: int, passes: int) -> Result:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors this small are quickest so, and sums do not depend on the number of cores
    try:
        return train(folder, ways()[name], seed=seed, passes=passes, sinks=[board.sink(name)])
    finally:
        torch.set_num_threads(threads)


def _empty(folder: Path) -> Path:
    """The folder without the run an earlier demo left there, which would otherwise be resumed at its end."""
    if (folder / LOG_NAME).exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _judged(claim: Claim) -> Text:
    mark = ("  ✓ ", "bold green") if claim.holds else ("  ✗ ", "bold red")
    return Text.assemble(mark, claim.text if claim.holds else f"THIS DOES NOT HOLD: {claim.text}")


def _in_words(small: Result, large: Result, swelled: Result) -> str:
    return (
        f"The learning rate was tuned for batches of {BASE_BATCH}. With batches of {LARGE_BATCH} and nothing else "
        f"changed, {PASSES} passes end at {large.accuracy:.1%}. swell grew the batch with the gradient noise and let "
        f"the learning rate follow: {swelled.accuracy:.1%} against {small.accuracy:.1%}, in "
        f"{swelled.steps / small.steps:.0%} of the steps."
    )
