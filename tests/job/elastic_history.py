"""A training run that is resized, stopped and struck by faults as a history says, and what must hold afterwards."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import swell
from swell.checkpoint.cadence import Cadence
from swell.core.events import Stepped
from swell.core.order import Shuffled
from swell.errors import ConfigError
from swell.gradients import buckets, overlap
from swell.runtime.faults import Fault, Faults
from swell.supervisor.control import ask
from swell.supervisor.patience import Patience
from swell.supervisor.worker_trace import WorkerTrace
from swell.telemetry import read_events
from tests.job.scenario import Points, make_model, mean_loss
from tests.supervisor.forked import ForkedRun

N, EPOCHS, SEED, BASE, VALIDATION = 60, 3, 7, 4, 13
BATCHES = [(0.0, 4), (1.0, 8), (1.7, 5)]  # by epochs, so that they are the same whatever the world does
PATIENCE = Patience(hang_s=2.0, linger_s=0.2, start_s=60.0, grace_s=20.0)


@dataclass(frozen=True)
class History:
    """What befalls a run: numbers of workers by step, faults, and steps at which it is stopped and resumed."""

    start: int = 2
    most: int = 3
    resizes: tuple[tuple[int, int], ...] = ()  # (step, workers)
    faults: tuple[Fault, ...] = ()
    stops: tuple[int, ...] = ()  # steps after which it is stopped; then its next life begins, on other workers
    trace: WorkerTrace | None = None  # numbers of workers by time; those too many are killed
    options: dict[str, Any] = field(default_factory=dict)  # of the training: closure, two, evaluate, data_workers ...


def play(folder: Path, history: History) -> list[dict[str, Any]]:
    """Run a history to its end with real processes; the faults that happened.

    A run that ends before its training does is resumed: it was asked to stop, or its last worker was, or one failed on
    the way out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    faults, start = Faults(history.faults, folder), history.start
    ends: list[int] = []
    for life, stop in enumerate([*history.stops, None, None, None]):
        resizes = [pair for pair in history.resizes if stop is None or pair[0] < stop]
        arguments = (str(folder), life, resizes, stop, history.options)
        settings = {"workers": f"1:{history.most}", "start": start, "max_restarts": 99, "patience": PATIENCE}
        settings |= {"trace": history.trace, "trace_removals": "kill"}
        function = "tests.job.elastic_history:train"
        with ForkedRun(folder, function, *arguments, environ=faults.variables(), beat_s=0.2, **settings) as run:
            ends.append(run.end(timeout_s=90))
            assert ends[-1] == 0 or history.stops or history.faults, f"{history}\n{run.terminal()}"
        if ends[-1] == 0:
            return faults.happened()
        start = 1 + start % history.most
    raise AssertionError(f"{history} ended with {ends}")


def lay_out(votes: str) -> None:
    """How votes travel: apart from the buckets, with the last of them, or with the only one."""
    buckets.FEW_BYTES = 0
    buckets.SINGLE_BYTES = {"apart": 240, "last": 240, "only": 2**20, "no bucket": 1}[
        votes
    ]  # these travel where they are
    buckets.CARRYING_BYTES = 0 if votes == "apart" else 2**20


def train(folder: str, life: int, resizes: list[tuple[int, int]], stop: int | None, options: dict[str, Any]) -> None:
    """What each worker runs: a job that writes down what it tries and what it commits."""
    place = Path(folder)
    if "bucket_bytes" in options:
        buckets.bucket_bytes = lambda number, total: options["bucket_bytes"]
    overlap.LARGE = 8  # some gradients are moved into their bucket before it is full
    lay_out(options.get("votes", "apart"))
    job = swell.Job(
        place / "saved",
        batch=swell.Schedule(BATCHES, unit="epochs", base=BASE),
        micro=3,
        rule="linear",
        seed=SEED,
        device="cpu",
        save=Cadence(every_samples=24),
    )
    loading = {"num_workers": 1, "persistent_workers": True} if options.get("data_workers") else {}
    loader = job.loader(Points(N), shuffle=True, **loading)
    update, models = optimize(job, place, options)
    log = (place / f"rows-{life}-{os.getpid()}.jsonl").open("a", buffering=1)

    def write(**facts: Any) -> None:
        log.write(json.dumps({"life": life, "generation": job.engine.peers.generation, **facts}) + "\n")

    for epoch in job.epochs(EPOCHS):
        for x, y, index in loader:
            time.sleep(options.get("pause_s", 0.01))
            step, generation = job.steps, job.engine.peers.generation
            write(tried=step, epoch=epoch, rows=index.tolist())
            job.metrics.sum("seen", len(y))
            stepped = update(x, y)
            assert stepped == (job.steps > step)
            if stepped:
                write(committed=step, generation=generation)
                last = (
                    job.engine.state.ledger.remaining == 0
                )  # too short, perhaps, for each replica to have a part in it
                if options.get("evaluate") and step % 5 == 3 and not last:
                    evaluate(job)
                direct(place, life, job, resizes, stop)
        if options.get("evaluate"):
            evaluate(job)
        results = job.metrics.results()
        write(epoch_end=epoch, seen=results["seen"], evaluated=results.get("evaluated", 0))
    if job.is_main:
        weights = [p.detach().flatten().tolist() for model in models for p in model.parameters()]
        (place / "weights.json").write_text(json.dumps(weights))
    job.close()


def optimize(
    job: swell.Job, place: Path, options: dict[str, Any]
) -> tuple[Callable[[Tensor, Tensor], bool], list[torch.nn.Module]]:
    """A model under the job's care and what is done with a batch: plainly, by closure, or by two optimizers in turn."""
    model, other = make_model(), make_model(seed=5)
    if options.get("closure"):
        job.wrap(model, torch.optim.LBFGS(model.parameters(), lr=0.05, max_iter=3, history_size=3))

        def loss_of(x: Tensor, y: Tensor) -> Tensor:
            loss = mean_loss(model, x, y)
            job.backward(loss)
            return loss

        return lambda x, y: job.step(loss_of, x, y), [model]
    first = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    job.wrap(model, first)
    if not options.get("two"):

        def plainly(x: Tensor, y: Tensor) -> bool:
            job.backward(mean_loss(model, x, y))
            return job.step()

        return plainly, [model]
    second = torch.optim.SGD(other.parameters(), lr=0.01, momentum=0.9)
    job.wrap(other, second)

    def in_turn(x: Tensor, y: Tensor) -> bool:
        job.backward(mean_loss(model, x, y), optimizer=first)
        job.step(optimizer=first)
        if [job.rank, job.steps] == options.get("between") and claimed(place / "between"):
            os.kill(os.getpid(), signal.SIGKILL)
        if job.engine.steps.current is None or job.engine.steps.current.ended:
            return False
        job.backward(mean_loss(other, x, y), optimizer=second)
        return job.step(optimizer=second)

    return in_turn, [model, other]


def evaluate(job: swell.Job) -> None:
    for _, y, _ in job.evaluation(Points(VALIDATION), batch_size=2):
        job.metrics.sum("evaluated", len(y))


def direct(place: Path, life: int, job: swell.Job, resizes: list[tuple[int, int]], stop: int | None) -> None:
    """Play the owner of the run: ask for each change once, when its step has come."""
    wishes: list[tuple[str, int, dict[str, Any]]] = [("resize", at, {"workers": workers}) for at, workers in resizes]
    wishes += [] if stop is None else [("stop", stop, {})]
    for word, at, facts in wishes:
        if job.steps >= at and job.is_main and claimed(place / f"asked-{life}-{word}-{at}"):
            with contextlib.suppress(ConfigError):  # the run is coming to its end
                ask(os.environ["SWELL_RUN_DIR"], word, **facts)


def claimed(path: Path) -> bool:
    """Whether this process is the first to come by."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def weights(folder: Path) -> Tensor:
    rows = json.loads((folder / "weights.json").read_text())
    return torch.tensor([x for row in rows for x in row], dtype=torch.float64)


def straight_path(folder: Path) -> list[tuple[Any, ...]]:
    """What the log says of each step and must not depend on the history; of a step done again, the last time."""
    events = [event for event in read_events(folder / "saved" / "events.jsonl") if isinstance(event, Stepped)]
    last = {event.step: event for event in events}
    assert sorted(last) == list(range(1, len(last) + 1)), "every step is in the log"
    return [
        (e.step, e.epoch, e.samples, e.global_batch, e.lr, e.lr_factor, round(e.progress, 9), round(e.gain, 9))
        for e in last.values()
    ]


def records(folder: Path) -> list[dict[str, Any]]:
    """What all workers wrote down."""
    found = []
    for path in folder.glob("rows-*.jsonl"):
        found += [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    return found


def sums(folder: Path) -> dict[int, tuple[float, float]]:
    """What each epoch's metrics counted; every worker must have read the same."""
    ends = {(r["epoch_end"], r["seen"], r["evaluated"]) for r in records(folder) if "epoch_end" in r}
    assert len(ends) == EPOCHS, ends
    return {epoch: (seen, evaluated) for epoch, seen, evaluated in ends}


def check(folder: Path, undisturbed: Path) -> None:
    """Every sample once, in one order, factors and weights of the undisturbed run, metrics exact.

    Of a step that was committed in several worlds (all who had it were lost) the last one counts.
    """
    tries: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    epochs: dict[int, int] = {}
    commits: dict[int, tuple[int, int]] = {}
    for record in records(folder):
        world = (record["life"], record["generation"])
        if "tried" in record:
            tries[(record["tried"], *world)] += record["rows"]
            epochs[record["tried"]] = record["epoch"]
        elif "committed" in record:
            commits[record["committed"]] = max(commits.get(record["committed"], (0, 0)), world)
    orders = [Shuffled(N, seed=SEED, epoch=epoch).indices(0, N).tolist() for epoch in range(EPOCHS)]
    done = [0] * EPOCHS
    for step in range(len(commits)):
        assert step in commits, f"step {step} was lost"
        rows, epoch = tries[(step, *commits[step])], epochs[step]
        at, done[epoch] = done[epoch], done[epoch] + len(rows)
        assert sorted(rows) == sorted(orders[epoch][at : done[epoch]]), f"step {step} took other samples"
    assert done == [N] * EPOCHS, "every sample of every epoch is committed once"
    assert sums(folder) == sums(undisturbed) and all(seen == N for seen, _ in sums(folder).values())
    assert straight_path(folder) == straight_path(undisturbed)
    expected = weights(undisturbed)
    assert float((weights(folder) - expected).norm() / expected.norm()) < 1e-6
