"""What swell does, in a minute: a small network on handwritten digits, trained three ways and with faults."""

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
from swell.demo.training import BASE_BATCH, EPOCHS, LARGE_BATCH, SWELL_EPOCHS, Result, train, ways
from swell.telemetry import LOG_NAME, compare, draw_timeline, read_events, write_report

ELASTIC = "swell, elastic"


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """The results of the demo, and whether its claims hold."""

    results: dict[str, Result]
    claims: list[Claim]
    pictures: list[Path]
    report: Path

    @property
    def holds(self) -> bool:
        """Whether every claim is true."""
        return all(claim.holds for claim in self.claims)


def show(out: Path, *, seed: int = 0, epochs: int = SWELL_EPOCHS) -> DemoResult:
    """Train three ways, and once more on workers that come, go and die; show, check and draw the results.

    ``out/demo.png`` shows the elastic run over time, ``out/ways.png`` the three ways side by side, ``out/report.html``
    all four runs in the browser. Runs of an earlier demo are replaced. Raises ``SwellError`` if the elastic run does
    not reach its end.
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
            results[name] = _train_undisturbed(folders[name], name, board, seed=seed, epochs=min(epochs, way.epochs))
            board.finish(name, results[name])

        def add(moment: Moment) -> None:
            moments.append(moment)
            board.add(moment)

        size = len(load_digits()[0])
        board.begin("the same run starts once more, on one worker: swell run --workers 1:2")
        run = ElasticRun(folder, seed=seed, epochs=epochs, total=size * epochs, sink=board.sink(ELASTIC), report=add)
        results[ELASTIC] = run.play()
        board.finish(ELASTIC, results[ELASTIC])
    console.print(_summary(*(results[name] for name in ways())))
    events = list(read_events(folder / LOG_NAME))
    proof = claims(events, folder, results[ELASTIC], results["swell"], size=size, epochs=epochs)
    console.print("\nThe elastic run, according to the records of its workers:")
    for claim in proof:
        console.print(_verdict(claim))
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
    console.print(f"The three ways side by side: {pictures[1]}; each run's events are in its folder.", soft_wrap=True)
    report = write_report([folder, *folders.values()], out / "report.html")
    console.print("\nAll four runs, with every decision and its reasons, in one file. Open it in a browser:")
    console.print(f"  {report.resolve().as_uri()}", style="bold", soft_wrap=True)
    console.print(
        f"Live, while runs go on: swell dashboard {out}; on the terminal: swell watch {folder}", soft_wrap=True
    )
    return DemoResult(results=results, claims=proof, pictures=pictures, report=report)


def _train_undisturbed(folder: Path, name: str, board: Scoreboard, *, seed: int, epochs: int) -> Result:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # fastest for tensors this small, and sums do not depend on the number of cores
    try:
        return train(folder, ways()[name], seed=seed, epochs=epochs, sinks=[board.sink(name)])
    finally:
        torch.set_num_threads(threads)


def _empty(folder: Path) -> Path:
    """The folder, without the run of an earlier demo, which would otherwise be resumed."""
    if (folder / LOG_NAME).exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _verdict(claim: Claim) -> Text:
    mark = ("  ✓ ", "bold green") if claim.holds else ("  ✗ ", "bold red")
    return Text.assemble(mark, claim.text if claim.holds else f"THIS DOES NOT HOLD: {claim.text}")


def _summary(small: Result, large: Result, adaptive: Result) -> str:
    return (
        f"The learning rate was tuned for batches of {BASE_BATCH}. With batches of {LARGE_BATCH} and nothing else "
        f"changed, {EPOCHS} epochs end at {large.accuracy:.1%}. swell grew the batch with the gradient noise and "
        f"adapted the learning rate: {adaptive.accuracy:.1%} against {small.accuracy:.1%}, in "
        f"{adaptive.steps / small.steps:.0%} of the steps."
    )
