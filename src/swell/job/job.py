"""The object a user holds: data, batch size, gradients, learning rate and progress of one training run."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import IterableDataset

from swell.checkpoint.cadence import Cadence
from swell.core.counts import whole_number
from swell.core.events import Event
from swell.core.ledger import Ledger
from swell.core.protocols import Policy, Rule, Sink, Stateful
from swell.core.types import Plan
from swell.data.orders import orders
from swell.errors import ConfigError, LoopError
from swell.job.adoption import adopt, bare
from swell.job.announcer import Announcer
from swell.job.checks import as_cadence, check_clip, check_dataset, check_micro, check_pair, check_place, describe
from swell.job.closing import end_early
from swell.job.elasticity import Elasticity
from swell.job.ending import Ending
from swell.job.evaluation import evaluate
from swell.job.figures import Figures
from swell.job.keeper import Keeper
from swell.job.passes import Passes
from swell.job.rehearsal import Rehearsal, Rehearse
from swell.job.stepping import Stepping
from swell.job.trainee import Clip, Trainee
from swell.job.training_loader import TrainingLoader, feed_loader, stream_loader
from swell.job.vote import agree_on_text
from swell.loop.lr_schedule import schedule_of
from swell.loop.metrics import Metrics
from swell.loop.pace import Pace
from swell.loop.statistics import Statistics, as_statistics
from swell.loop.step import StepInProgress
from swell.policies import as_policy
from swell.rules import as_rule, auto, suits
from swell.runtime.environment import read_environment
from swell.runtime.notices import Notices
from swell.runtime.world import World, open_world

Micro = int | tuple[int | None, int | None] | None


class Job(Figures):
    """One training run on whatever replicas there are.

    ``batch`` chooses the global batch of every step: a number, a policy such as :class:`swell.Goodput`, a CSV trace,
    or a function of an :class:`~swell.core.types.Observation`. ``rule`` lets the learning rate follow it: a name, a
    rule, or a function of the scale; ``"auto"`` picks by optimizer. ``micro`` bounds what one replica sends through
    the model at once (a largest size, or ``(smallest, largest)``); by default it is the policy's base batch, which is
    known to fit. Events are written to ``run_dir/events.jsonl`` if a run folder is given.

        job = swell.Job("runs/digits", batch=swell.Ramp(64, 512, over=5, unit="epochs"))
        model, optimizer = job.wrap(model, optimizer)
        loader = job.loader(train_set, shuffle=True)
        for epoch in job.epochs(10):
            for x, y in loader:
                job.backward(F.cross_entropy(model(x), y))
                job.step()
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
        statistics: bool | int | Statistics = True,
        nonfinite: str = "raise",
        seed: int = 0,
        device: torch.device | str = "auto",
        save: float | Cadence | None = 300.0,
        keep: int = 3,
        notices: Notices | bool = True,
        progress: bool | None = None,
        sinks: Sequence[Sink] = (),
        world: World | None = None,
    ) -> None:
        if nonfinite not in ("raise", "skip"):
            raise ConfigError(f"nonfinite={nonfinite!r} is not known; expected 'raise' or 'skip'.")
        check_place(run_dir, device)
        check_micro(micro)
        cadence, keep = as_cadence(save), whole_number(keep, name="keep")
        policy = as_policy(batch, base=base)
        said = read_environment().swell_rehearse
        self._rehearsal = None if said is None else Rehearsal(Rehearse.from_json(said))
        if self._rehearsal is not None:
            policy = self._rehearsal.policy(policy)
            micro, constant_micro = self._rehearsal.bounds(micro, constant_micro)
            run_dir, notices = None, False
        self._rule = rule if rule == "auto" else as_rule(rule)
        self._seed = seed
        self._world = world if world is not None else open_world(device)
        self._pace = Pace(
            policy,
            micro=micro,
            constant_micro=constant_micro,
            capacity=tuple(capacity) if capacity is not None else None,
        )
        self.metrics = Metrics()
        self.run_dir = Path(run_dir) if run_dir is not None else None
        self._announcer = Announcer(self, progress=progress, sinks=sinks)
        self._trainees: list[Trainee] = []
        self._loader: TrainingLoader | None = None
        self._statistics = as_statistics(statistics)
        if self._rehearsal is not None:
            self._statistics = self._rehearsal.statistics(self._statistics)
        self._ending = Ending(self, nonfinite=nonfinite)
        self._stepping = Stepping(self, self._ending, nonfinite=nonfinite, statistics=self._statistics)
        self._registered: dict[str, Any] = {}
        self._passes = Passes(self)
        self._settings = f"base={policy.base}\nmicro={micro!r}\nseed={seed!r}\nnonfinite={nonfinite}"
        if not self._world.elastic:
            mend = "Give every replica the same arguments to swell.Job."
            agree_on_text(self.collective, "the job's settings", self._settings, mend)
        self._keeper = Keeper(self, self.run_dir, cadence=cadence, keep=keep)
        self._elasticity = Elasticity(self, notices=notices)
        self._closed = False

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
    ) -> tuple[nn.Module, Optimizer]:
        """Put a model and its optimizer under the job's care; returns both as they are, nothing is patched.

        Replicas start from rank 0's weights. ``scheduler`` is stepped once per base step of progress
        (``schedule="progress"``), once an epoch (``"epoch"``), or by you (``"manual"``). ``scaler`` is a
        ``torch.amp.GradScaler`` for float16. Call it once for each optimizer; ``rule`` overrides the job's for it.
        """
        if self._stepping.under_way:
            raise LoopError("job.wrap was called inside the training loop. Wrap every model before it begins.")
        check_pair(model, optimizer)
        chosen = self._rule if rule is None else rule
        name = type(optimizer).__name__
        resolved = auto(name) if chosen == "auto" else as_rule(chosen)
        if (objection := suits(resolved, name)) is not None:
            warnings.warn(objection, UserWarning, stacklevel=2)
        model = bare(model)
        trainee = Trainee(
            model,
            optimizer,
            rule=resolved,
            scaler=scaler,
            schedule=None if scheduler is None else schedule_of(optimizer, scheduler, by=schedule),
            base_batch=self._pace.base,
            exact=self._statistics is not None and self._statistics.exact,
            half=None if self._statistics is None else self._statistics.half_of,
        )
        adopt(self, trainee)
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
        if self._loader is not None:
            raise LoopError(
                "this job already has a training loader; a second one would count its samples twice. Use "
                "job.evaluation(...) for validation data, or a swell.Job of its own for another run."
            )
        check_dataset(dataset, "loader")
        if isinstance(dataset, IterableDataset):
            if shuffle or weights is not None or order is not None or sampler is not None:
                raise ConfigError(
                    "an IterableDataset has an order of its own: shuffle, weights, order and sampler cannot change it. "
                    "Shuffle inside the data set, or pass a map-style one."
                )
            self._loader = stream_loader(self, dataset, seed=self._seed, drop_last=drop_last, **loading)
        else:
            order_of = orders(dataset, shuffle=shuffle, weights=weights, order=order, sampler=sampler, seed=self._seed)
            self._loader = feed_loader(self, dataset, order_of, seed=self._seed, drop_last=drop_last, **loading)
        if not self._world.elastic:
            length = f"length {self._ledger.length}"
            agree_on_text(self.collective, "the data set", length, "Give every replica the same data set.")
        return self._loader

    def evaluation(self, dataset: Any, *, batch_size: int | None = None, **loading: Any) -> Iterator[Any]:
        """Validation data split exactly over the replicas: nothing padded, nothing twice.

        Metrics added while iterating are summed over the replicas when the loop ends.
        """
        check_dataset(dataset, "evaluation")
        return evaluate(self, dataset, batch_size=self._pace.base if batch_size is None else batch_size, **loading)

    # The loop

    def epochs(self, count: int) -> Iterator[int]:
        """Go through the data ``count`` times; yields the number of each epoch that is not done yet."""
        return self._passes.epochs(count)

    def until(self, *, steps: float | None = None, epochs: float | None = None) -> Iterator[int]:
        """Go on, pass after pass, until the accumulated gain reaches ``steps`` base steps, or ``epochs`` worth of them.

        The stopping rule of AdaScale (Johnson et al. 2020): a larger batch takes fewer steps, each worth more. Training
        stops at the step that reaches it, in the middle of a pass if need be.
        """
        return self._passes.until(steps=steps, epochs=epochs)

    def backward(
        self, loss: Tensor, *, weight: float | Tensor | None = None, optimizer: Optimizer | None = None, **options: Any
    ) -> None:
        """Add the gradient of one micro-batch's mean loss, weighted by its part of the global batch.

        With ``weight`` (tokens, say) the step's gradient is the weighted mean over all micro-batches of all replicas,
        not a mean of means. ``optimizer`` keeps the gradient to that optimizer's parameters (a GAN's generator, say).
        ``options`` go to ``torch.autograd.backward``.
        """
        self._stepping.backward(loss, weight, self._selected(optimizer), only=optimizer is not None, options=options)

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
        return self._stepping.step(closure, inputs, self._selected(optimizer), clip)

    def register(self, name: str, thing: Stateful) -> None:
        """Put anything with ``state_dict`` and ``load_state_dict`` into the checkpoints: a model average, a sampler.

        Before the loop, for where it begins what was saved is loaded.
        """
        if self._elasticity.joined:
            raise LoopError(
                f"job.register({name!r}) came after what was saved had been loaded, so it would begin anew. Call it "
                f"before the loop over job.epochs, and before job.evaluation and job.save."
            )
        if not isinstance(thing, Stateful):
            raise ConfigError(
                f"job.register({name!r}) was given a {type(thing).__name__}; expected something with state_dict() and "
                f"load_state_dict(state)."
            )
        if name in self._registered:
            raise ConfigError(f"something is registered as {name!r} already. Choose another name.")
        self._registered[name] = thing

    def save(self, name: str | None = None) -> None:
        """Save a checkpoint now and wait for it; one with a ``name`` is kept for good. Every replica calls it.

        Saved after the loop over the loader, an epoch counts as done: a run resumed from there begins the next one.
        """
        self._require_open("job.save")
        self._elasticity.join_early()
        self._elasticity.together(lambda: self._save(name))

    def attempt(self) -> AbstractContextManager[None]:
        """Put around what is done with one batch, so that running out of memory is no end.

            for x, y in loader:
                with job.attempt():
                    job.backward(F.cross_entropy(model(x), y))
                    job.step()

        The step is then given up on all replicas together, and its samples come again in micro-batches half as large;
        the size that was too much is avoided while the replica that ran out takes part. Raises as ever where a single
        sample is too much, or where memory runs out in the update itself, which no smaller micro-batch would mend.
        """
        return self._stepping.attempt()

    def redo(self) -> None:
        """Give up the step under way on all replicas; its samples come again. For use after an exception."""
        self._stepping.spoil("job.redo was called")

    def close(self) -> None:
        """End the run: save what was not saved, stop data workers, leave the process group. No training after it.

        Every replica calls it. While an exception is on its way, nothing is saved: a run that failed goes on from its
        last save.
        """
        for trainee in self._trainees:
            trainee.drain()
            trainee.give_back()
        if not self._closed:
            end_early(self)
        self._closed = True
        if self._loader is not None:
            self._loader.close()
        self._keeper.close()
        self._announcer.close()
        self._world.close()

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *failure: object) -> None:
        self.close()

    # For the parts that work for the job

    @property
    def _training(self) -> TrainingLoader:
        if self._loader is None:
            raise LoopError("the job has no training data yet. Call job.loader(dataset) before the loop.")
        return self._loader

    @property
    def _ledger(self) -> Ledger:
        return self._training.ledger

    def _selected(self, optimizer: Optimizer | None) -> list[Trainee]:
        if not self._trainees:
            raise LoopError("the job has no model yet. Call job.wrap(model, optimizer) before the loop.")
        if optimizer is None:
            return self._trainees
        chosen = [t for t in self._trainees if t.optimizer is optimizer]
        if not chosen:
            raise ConfigError("this optimizer was not given to job.wrap; pass one that was, or none for all of them.")
        return chosen

    def _emit(self, event: Event) -> None:
        self._announcer.emit(event)

    def _save(self, name: str | None = None) -> None:
        self._ending.count_late()
        self._keeper.save(name=name, wait=True, done=self._stepping.through or self._ending.done)

    def _begin_step(self) -> StepInProgress | None:
        self._require_open("the training loader")
        return self._stepping.begin(self._ledger)

    def _end_step(self, step: StepInProgress) -> None:
        self._stepping.end(step, self._ledger)

    def _described(self) -> str:
        models = "\n".join(describe(trainee) for trainee in self._trainees)
        return f"{self._settings}\nlength {self._ledger.length}\n{models}"

    def _trains_at(self, step: int) -> bool:
        """Whether weights move at this step: always, but in a rehearsal."""
        return self._rehearsal is None or self._rehearsal.trains(step)

    def _require_open(self, wanted: str) -> None:
        if self._closed:
            raise LoopError(
                f"{wanted}: the job was closed, so nothing would be logged or saved. Do it before job.close() (or in "
                "`with swell.Job(...) as job:`), or make another job on the same run folder, which goes on from there."
            )

    def _enter_loop(self) -> None:
        self._require_open("the training loader")
        self._selected(None)
        self._elasticity.join()
        if self._stepping.through:
            raise LoopError(
                f"every sample of epoch {self._ledger.epoch} was used already, and the loader would give nothing. Go "
                "through it once in each turn of `for epoch in job.epochs(n)`, which begins the next epoch."
            )
        self._stepping.enter()

    def _leave_loop(self) -> None:
        self._stepping.leave()

    def _planned(self) -> Plan:
        return self._pace.lay_out(self._pace.batch, self._pace.batch, replicas=self.replicas, split=False)

    def _tail_plan(self, count: int) -> Plan:
        return self._pace.lay_out(self._pace.batch, count, replicas=self.replicas, split=False)
