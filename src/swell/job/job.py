"""The object a user holds: data, batch size, gradients, learning rate and progress of one training run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import IterableDataset

from swell.checkpoint.cadence import Cadence
from swell.checkpoint.run_lock import RunLock
from swell.core.counts import whole_number
from swell.core.protocols import Collective, Policy, Rule, Sink, Stateful
from swell.core.types import NoiseEstimate
from swell.data.orders import orders
from swell.errors import ConfigError, LoopError
from swell.job.arguments import (
    as_cadence,
    check_clip,
    check_dataset,
    check_fresh,
    check_micro,
    check_pair,
    check_place,
    run_folder,
    stopping_by,
)
from swell.job.engine import Engine, sinks_of
from swell.job.evaluation import evaluate
from swell.job.learner import Clip, Learner
from swell.job.loader import TrainingLoader
from swell.job.peers import Peers, listener
from swell.job.planner import Planner
from swell.job.random_streams import RandomStreams, check_random
from swell.job.rehearsal import Micro
from swell.job.rehearsals import rehearsal_of
from swell.job.run_state import RunState
from swell.job.saving import SavingOptions
from swell.job.training_data import map_style_data, streamed_data
from swell.job.vote import agree_on_text
from swell.job.wrapping import take_in, unwrapped
from swell.loop.lr_schedule import schedule_of
from swell.loop.metrics import Metrics
from swell.loop.milestones import checked_period
from swell.loop.pace import Pace
from swell.loop.statistics import Statistics, as_statistics
from swell.loop.step import Phase
from swell.policies import as_policy
from swell.rules import as_rule, auto, suits
from swell.runtime.environment import read_environment
from swell.runtime.faults import read_faults
from swell.runtime.notices import Notices
from swell.runtime.world import World, open_world

if TYPE_CHECKING:
    from swell.telemetry.run_plot import RunPlot

Shared = TypeVar("Shared")


class Job:
    """One training run on whatever replicas there are.

    ``batch`` chooses the global batch of every step: a number, a policy such as :class:`swell.Goodput`, a CSV trace,
    or a function of an :class:`~swell.core.types.Observation`. ``rule`` lets the learning rate follow it: a name, a
    rule, or a function of the scale; ``"auto"`` picks by optimizer. ``micro`` bounds what one replica sends through
    the model at once (a largest size, or ``(smallest, largest)``); by default it is the policy's base batch, which is
    known to fit. ``statistics`` says when the gradient's noise is measured; by default where the batch, the rule or a
    policy depends on it. ``exchange="bfloat16"`` halves what replicas send each other: gradients travel in bfloat16 and
    are added up in float32. ``random`` is ``"per-replica"`` for random numbers of its own on every replica (the first
    one keeps the script's), or ``"same"``. Events are written to ``run_dir/events.jsonl`` if a run folder is given; one
    process at a time writes there. ``fresh`` starts over in a used folder: what it holds is moved aside, once for each
    start of the run.

        job = swell.Job("runs/digits", batch=swell.Ramp(64, 512, over=5, unit="epochs"))
        model, optimizer = job.wrap(model, optimizer)
        loader = job.loader(train_set, shuffle=True)
        for epoch in job.epochs(10):
            for x, y in loader:
                job.backward(F.cross_entropy(model(x), y))
                job.step()

    ``engine`` holds the parts that do the work, for facades and trainers that drive a loop of another kind.
    """

    def __init__(
        self,
        run_dir: str | Path | None = None,
        *,
        batch: int | str | Path | Policy | Callable[..., int],
        base: int | None = None,
        rule: str | Rule | Callable[..., Any] = "auto",
        micro: Micro = None,
        constant_micro: bool = False,
        capacity: Sequence[float] | None = None,
        statistics: bool | int | str | Statistics = "auto",
        nonfinite: str = "raise",
        exchange: str = "exact",
        seed: int = 0,
        random: str = "per-replica",
        device: torch.device | str = "auto",
        save: float | Cadence | None = 300.0,
        keep: int = 3,
        fresh: bool | None = None,
        notices: Notices | bool = True,
        progress: bool | None = None,
        sinks: Sequence[Sink] = (),
        world: World | None = None,
    ) -> None:
        if nonfinite not in ("raise", "skip"):
            raise ConfigError(f"nonfinite is {nonfinite!r}; expected 'raise' or 'skip'. Leave it out for 'raise'.")
        if exchange not in ("exact", "bfloat16"):
            raise ConfigError(f"exchange is {exchange!r}; expected 'exact' or 'bfloat16'. Leave it out for 'exact'.")
        check_place(run_dir, device)
        check_micro(micro)
        check_random(random)
        cadence, keep = as_cadence(save), whole_number(keep, name="keep")
        environment = read_environment()
        rehearsal = rehearsal_of(environment.swell_rehearse)
        policy = rehearsal.policy(as_policy(batch, base=base))
        micro, constant_micro = rehearsal.bounds(micro, constant_micro)
        if rehearsal.rehearses:
            notices = False
        self.run_dir = rehearsal.folder(run_folder(run_dir, environment))
        lock = None if self.run_dir is None else RunLock(self.run_dir, supervision=environment.supervision)
        self._rule = rule if rule == "auto" else as_rule(rule)
        self._statistics = rehearsal.statistics(as_statistics(statistics))
        capacity = tuple(capacity) if capacity is not None else None
        settings = f"base={policy.base}\nmicro={micro!r}\nseed={seed!r}\nnonfinite={nonfinite}"
        self._narrow = exchange == "bfloat16"
        if self._narrow:
            settings += f"\nexchange={exchange}"
        state = RunState(
            Pace(policy, micro=micro, constant_micro=constant_micro, capacity=capacity),
            seed=seed,
            run_dir=self.run_dir,
            settings=settings,
        )
        peers = Peers(
            world if world is not None else open_world(device, environment=environment),
            notices=listener(notices, self.run_dir),
            faults=read_faults(environment),
        )
        self.engine = Engine(
            state,
            peers,
            RandomStreams(peers, mode=random),
            statistics=self._statistics,
            nonfinite=nonfinite,
            saving=SavingOptions(lock=lock, cadence=cadence, keep=keep, fresh=check_fresh(fresh, environment)),
            rehearsal=rehearsal,
            sinks=sinks_of(lock, progress=progress, extra=(*sinks, *rehearsal.sinks), events=environment.swell_events),
        )

    # What the user hands over

    def wrap(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        scheduler: Any | None = None,
        schedule: str = "progress",
        scaler: Any | None = None,
        rule: str | Rule | Callable[..., Any] | None = None,
        on_resume: str = "saved",
    ) -> tuple[nn.Module, Optimizer]:
        """Put a model and its optimizer under the job's care; returns both as they are, nothing is patched.

        Replicas start from rank 0's weights. ``scheduler`` is stepped once per base step of progress
        (``schedule="progress"``), once an epoch (``"epoch"``), or by you (``"manual"``). ``scaler`` is a
        ``torch.amp.GradScaler`` for float16. Call it once for each optimizer; ``rule`` overrides the job's for it.
        A resumed run keeps the learning rate, weight decay and schedule that it started with (``on_resume="saved"``) or
        takes the script's (``"script"``); where they differ, a warning says so.
        """
        steps, state = self.engine.steps, self.engine.state
        if steps.under_way:
            raise LoopError("job.wrap was called inside the training loop. Wrap every model before the loop.")
        check_pair(model, optimizer)
        if on_resume not in ("saved", "script"):
            raise ConfigError(f"on_resume is {on_resume!r}; expected 'saved' or 'script'. Leave it out for 'saved'.")
        chosen = self._rule if rule is None else rule
        name = type(optimizer).__name__
        resolved = auto(name) if chosen == "auto" else as_rule(chosen)
        model = unwrapped(model)
        learner = Learner(
            model,
            optimizer,
            rule=resolved,
            scaler=scaler,
            schedule=None if scheduler is None else schedule_of(optimizer, scheduler, by=schedule),
            base_batch=state.pace.base,
            exact=self._statistics is not None and self._statistics.exact,
            half=None if self._statistics is None else self._statistics.half_of,
        )
        if (objection := suits(resolved, name)) is not None:  # of what is not refused
            warnings.warn(objection, UserWarning, stacklevel=2)
        learner.takes_script_settings = on_resume == "script"
        learner.early.narrow = self._narrow
        take_in(learner, state=state, peers=self.engine.peers, under_way=lambda: steps.under_way)
        return model, optimizer

    def loader(
        self,
        dataset: Any,
        *,
        shuffle: bool = False,
        drop_last: bool = False,
        weights: Sequence[float] | None = None,
        order: Any | None = None,
        sampler: Any | None = None,
        **loading: Any,
    ) -> TrainingLoader:
        """The training data, one micro-batch of the current plan at a time.

        Takes what ``torch.utils.data.DataLoader`` takes (``num_workers``, ``collate_fn``, ``pin_memory``,
        ``persistent_workers`` …) except ``batch_size``, which the job decides. The order is a function of the job's
        seed and the epoch alone; ``weights`` draws with replacement, ``order`` or ``sampler`` give your own.
        """
        state, peers = self.engine.state, self.engine.peers
        if state.has_data:
            raise LoopError(
                "this job already has a training loader; a second one would count its samples twice. Use "
                "job.evaluation(...) for validation data, one data set that gives a sample of each for two tasks at "
                "once, or a swell.Job of its own for another run."
            )
        check_dataset(dataset, "loader")
        if isinstance(dataset, IterableDataset):
            if shuffle or weights is not None or order is not None or sampler is not None:
                raise ConfigError(
                    "an IterableDataset has an order of its own: shuffle, weights, order and sampler cannot change it. "
                    "Shuffle inside the data set, or pass a map-style one."
                )
            data = streamed_data(dataset, seed=state.seed, drop_last=drop_last, **loading)
        else:
            order_of = orders(dataset, shuffle=shuffle, weights=weights, order=order, sampler=sampler, seed=state.seed)
            data = map_style_data(dataset, order_of, peers=peers, seed=state.seed, drop_last=drop_last, **loading)
        if not peers.elastic:
            text = f"{state.settings}\nlength {data.ledger.length}"
            remedy = "Give every replica the same arguments to swell.Job, and the same data set."
            agree_on_text(peers.collective, "the run's settings and data", text, remedy)
        state.train_on(data)
        return self.engine.loader

    def evaluation(self, dataset: Any, *, batch_size: int | None = None, **loading: Any) -> Iterator[Any]:
        """Validation data split exactly over the replicas: nothing padded, nothing twice.

        Metrics added while iterating are summed over the replicas when the loop ends.
        """
        check_dataset(dataset, "evaluation")
        engine = self.engine
        size = engine.state.pace.base if batch_size is None else batch_size
        return evaluate(engine.state, engine.peers, engine.recovery, dataset, batch_size=size, **loading)

    def register(self, name: str, thing: Stateful) -> None:
        """Put anything with ``state_dict`` and ``load_state_dict`` into the checkpoints: a model average, a sampler.

        Call it before the loop: the checkpoint is loaded when the loop starts.
        """
        if self.engine.recovery.joined:
            raise LoopError(
                f"job.register({name!r}) was called after the checkpoint was loaded, so its saved state would be "
                f"ignored. Call it before the loop over job.epochs, and before job.evaluation and job.save."
            )
        if not isinstance(thing, Stateful):
            raise ConfigError(
                f"thing is a {type(thing).__name__}; expected something with state_dict() and load_state_dict(state). "
                f"Give job.register({name!r}, ...) such an object, or wrap yours in one."
            )
        if name in self.engine.state.registered:
            raise ConfigError(f"something is registered as {name!r} already. Choose another name.")
        self.engine.state.registered[name] = thing

    # The loop

    def epochs(self, count: int) -> Iterator[int]:
        """Go through the data ``count`` times; yields the number of each epoch that is not done yet."""
        self.engine.begin("job.epochs")
        return self.engine.epochs.count(count)

    def until(
        self,
        *,
        steps: float | None = None,
        epochs: float | None = None,
        metric: str | None = None,
        target: float | None = None,
        patience: int | None = None,
        better: Literal["lower", "higher"] = "lower",
    ) -> Iterator[int]:
        """Go on, epoch after epoch, until the progress reaches ``steps`` base steps, or ``epochs`` of them.

        A larger batch takes fewer steps, each worth more. Training stops at the step that reaches it, in the middle of
        an epoch if need be.

        ``metric`` may end it sooner: at a ``target``, or after ``patience`` turns without a better value. It is judged
        after each turn, by what the body of the loop added to ``job.metrics`` under that name, or read last. All
        replicas come to the same verdict, and a resumed run goes on with it. ``better="higher"`` for an accuracy.

            for epoch in job.until(epochs=90, metric="validation loss", patience=5):
        """
        self.engine.begin("job.until")
        return self.engine.epochs.until(
            steps=steps, epochs=epochs, stopping=stopping_by(metric, target, patience, better)
        )

    def backward(
        self, loss: Tensor, *, weight: float | Tensor | None = None, optimizer: Optimizer | None = None, **options: Any
    ) -> None:
        """Add the gradient of one micro-batch's mean loss, weighted by its part of the global batch.

        With ``weight`` (tokens, say) the step's gradient is the weighted mean over all micro-batches of all replicas,
        not a mean of means. ``optimizer`` keeps the gradient to that optimizer's parameters (a GAN's generator, say).
        ``options`` go to ``torch.autograd.backward``.
        """
        learners = self._learners(optimizer)
        self.engine.steps.backward(loss, weight, learners, only=optimizer is not None, options=options)

    def step(
        self,
        closure: Callable[..., Any] | None = None,
        *inputs: Any,
        optimizer: Optimizer | None = None,
        clip: Clip | None = None,
    ) -> bool:
        """Finish a micro-batch; update the weights if it was the last of the global batch, and say whether it did.

        ``clip`` is the largest gradient norm, or a function of the parameters; statistics are taken before it. A
        ``closure`` (LBFGS, SAM) is called as ``closure(*inputs)`` for every micro-batch of the step, whenever the
        optimizer asks for the loss.
        """
        if clip is not None:
            check_clip(clip)
        return self.engine.steps.step(closure, inputs, self._learners(optimizer), clip)

    def _learners(self, optimizer: Optimizer | None) -> list[Learner]:
        learners = self.engine.state.learners
        if not learners:
            raise LoopError("the job has no model yet. Call job.wrap(model, optimizer) before the loop.")
        if optimizer is None:
            return learners
        chosen = [learner for learner in learners if learner.optimizer is optimizer]
        if not chosen:
            raise ConfigError("this optimizer was not given to job.wrap; pass one that was, or none for all of them.")
        return chosen

    def every(
        self,
        *,
        steps: int | None = None,
        samples: int | None = None,
        progress: float | None = None,
        seconds: float | None = None,
    ) -> bool:
        """Whether the step that was just made passed a multiple of one of these; ask after ``job.step()``.

            for x, y in loader:
                job.backward(F.cross_entropy(model(x), y))
                job.step()
                if job.every(samples=50_000):
                    evaluate()

        True once for each multiple, on every replica after the same step, and not again for the micro-batches of the
        next one. ``samples`` and ``progress`` mean the same moment for any batch, ``steps`` for any layout of one.
        Seconds are the first replica's, counted on by a resumed run. If some replica had no part in the step, which
        only the end of an epoch can do, the next step counts for both.
        """
        unit, number = checked_period({"steps": steps, "samples": samples, "progress": progress, "seconds": seconds})
        step = self.engine.steps.current
        if step is None or not (step.taken or step.ended or step.spoiled):
            raise LoopError(
                "job.every was called where no batch is finished; expected it in the loop over the loader, after "
                "job.step(). Move it there."
            )
        return step.phase is Phase.COMMITTED and self.engine.state.milestones.passed(unit, number)

    def attempt(self) -> AbstractContextManager[None]:
        """Put around what is done with one batch, so that the run survives running out of memory.

            for x, y in loader:
                with job.attempt():
                    job.backward(F.cross_entropy(model(x), y))
                    job.step()

        The step is then given up on all replicas together, and its samples come again in micro-batches half as large;
        the size that did not fit is avoided while the replica that ran out takes part. Still raises if a single sample
        does not fit, or if memory runs out in the update itself, which no smaller micro-batch would fix.
        """
        return self.engine.steps.attempt()

    def redo(self) -> None:
        """Give up the step under way on all replicas; its samples come again. For use after an exception."""
        self.engine.steps.spoil("job.redo was called")

    def share(self, function: Callable[[], Shared]) -> Shared:
        """What ``function()`` returns on the first replica, on every replica: rollouts, labels, an answer of a service.

        Every replica calls it in the body of the loop over ``job.epochs``: before the loop over the loader, after it,
        or between two steps. The value may hold tensors, arrays, numbers, text, and lists and dicts of these. It is
        saved with the run, so a worker that joins in the middle of the epoch, or resumes there, gets the same value
        and ``function`` is not called again.
        """
        return self.engine.sharing.share(function)

    def save(self, name: str | None = None) -> None:
        """Save a checkpoint now and wait for it; one with a ``name`` is kept for good. Every replica calls it.

        Saved after the loop over the loader, an epoch counts as done: a run resumed from there begins the next one.
        """
        self.engine.require_open("job.save")
        self.engine.save(name)

    def close(self) -> None:
        """End the run: save what was not saved, stop data workers, leave the process group. No training after it.

        Every replica calls it. While an exception is on its way, nothing is saved: a run that failed resumes from its
        last save.
        """
        self.engine.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    # Figures

    @property
    def metrics(self) -> Metrics:
        """Sums and means over all replicas, committed with the steps they belong to."""
        return self.engine.state.metrics

    @property
    def collective(self) -> Collective:
        """What the present replicas talk over; a newcomer is alone until the loop begins."""
        return self.engine.peers.collective

    @property
    def rank(self) -> int:
        """This replica's number, from 0."""
        return self.engine.peers.rank

    @property
    def replicas(self) -> int:
        """How many replicas there are now."""
        return self.engine.peers.size

    @property
    def is_main(self) -> bool:
        """Whether this replica writes files and prints."""
        return self.engine.peers.is_first

    @property
    def device(self) -> torch.device:
        """The device this replica should compute on."""
        return self.engine.peers.device

    @property
    def steps(self) -> int:
        """Optimizer steps committed."""
        return self.engine.state.steps

    @property
    def samples(self) -> int:
        """Samples committed, over all epochs."""
        return self.engine.state.samples

    @property
    def progress(self) -> float:
        """Accumulated base-equivalent steps."""
        return self.engine.state.pace.progress

    @property
    def global_batch(self) -> int:
        """The global batch that was chosen last, in samples; the last step of an epoch may have had fewer."""
        return self.engine.state.pace.batch

    @property
    def noise(self) -> NoiseEstimate | None:
        """What is known of the gradient's noise, of the first optimizer; None until a step was measured."""
        _warn_if_unmeasured(self.engine.planner)
        return self.engine.state.noise

    def noise_of(self, optimizer: Optimizer) -> NoiseEstimate | None:
        """What is known of the noise of one optimizer's gradient; None until a step was measured."""
        _warn_if_unmeasured(self.engine.planner)
        return self._learners(optimizer)[0].noise.estimate()

    @property
    def gain(self) -> float:
        """How many base steps the latest step was worth."""
        return self.engine.state.marks.gain

    @property
    def lr_factors(self) -> tuple[float, ...]:
        """What the learning rate of each parameter group was multiplied by in the latest step."""
        return tuple(factors.lr for factors in self.engine.state.marks.factors)

    @property
    def ema_power(self) -> float:
        """The exponent for a model average's decay in the latest step: use ``decay ** job.ema_power``."""
        factors = self.engine.state.marks.factors
        return factors[0].ema_power if factors else 1.0

    def plot(self, *others: str | Path) -> RunPlot:
        """The run so far as a page of charts and decisions: a notebook shows it, ``.save(path)`` writes it.

        ``others`` are folders of runs to compare it with. Needs a run folder.
        """
        if self.run_dir is None:
            raise ConfigError(
                "run_dir is None; expected a run folder, whose log job.plot shows. Give one: swell.Job('runs/a', ...)."
            )
        from swell.telemetry.run_plot import RunPlot  # with all that draws a page

        self.engine.reporter.flush()
        return RunPlot(self.run_dir, *others)

    def speedup(self, replicas: int | Iterable[int]) -> dict[int, float]:
        """How much faster the run would go on other numbers of replicas, relative to now; 0 where no batch fits.

        For schedulers that ask what another worker would bring. With a policy that weighs it this is goodput at the
        best batch there, otherwise samples a second at the present batch. Empty until a few steps were timed.
        """
        return {count: world.speedup for count, world in self.engine.planner.outlook(replicas).items()}

    def speedup_errors(self, replicas: int | Iterable[int]) -> dict[int, float]:
        """How far, relatively, each ``speedup`` may be off: 0.5 for half as much more or less (a standard deviation).

        A few per cent where such a world was measured; much where its links were never seen.
        """
        return {count: world.error for count, world in self.engine.planner.outlook(replicas).items()}


def _warn_if_unmeasured(planner: Planner) -> None:
    if planner.unmeasured:
        message = (
            "the gradient's noise is not measured, because the batch is fixed at the base batch and nothing depends on "
            "the noise there; expected statistics=True of a job whose noise is read. Pass it to swell.Job; a step of a "
            "single micro-batch is then cut in two now and then."
        )
        warnings.warn(message, UserWarning, stacklevel=3)
