"""``accelerate.Accelerator`` with a job behind it: the script's loop stays word for word.

The one file that builds on Accelerate's own class; ``one_process.py`` touches its shared state, ``releases.py`` lists
what is used and checks it.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import accelerate
import torch
from accelerate.state import PartialState
from accelerate.utils import send_to_device

from swell.core.protocols import Policy, Rule
from swell.errors import ConfigError, LoopError
from swell.integrations.accelerate.evaluation_pass import EvaluationPass
from swell.integrations.accelerate.gathering import gathered, padded, reduced
from swell.integrations.accelerate.one_process import become_one_process, follow_rank
from swell.integrations.accelerate.releases import require_known_release
from swell.integrations.accelerate.stand_ins import StandInOptimizer, StandInScheduler
from swell.integrations.accelerate.training_run import TrainingRun, refuse_second
from swell.integrations.training_source import job_loader
from swell.job import Job
from swell.loop.lr_schedule import MODES
from swell.loop.statistics import Statistics
from swell.runtime.environment import read_environment
from swell.runtime.world import open_world

REFUSED = ("deepspeed_plugin", "deepspeed_plugins", "fsdp_plugin", "megatron_lm_plugin", "torch_tp_plugin",
           "parallelism_config", "split_batches")  # fmt: skip


_Plain: Any = accelerate.Accelerator


class Accelerator(_Plain):
    """A drop-in for ``accelerate.Accelerator``: one global batch on any number of workers, which a policy may move.

    ``batch`` chooses the global batch as in :class:`swell.Job`; by default it is the training loader's ``batch_size *
    gradient_accumulation_steps``, whatever the number of processes. The loader's ``batch_size`` bounds what one worker
    computes at once. ``base``, ``rule`` and ``statistics`` are the job's. ``run_dir`` keeps the run, and a script that
    is started again resumes there. ``epochs``, if given, tells policies how long the run is. ``schedule`` says what a
    prepared scheduler follows: ``"progress"`` for one that is stepped after each batch, ``"epoch"``, or ``"manual"``.

        from swell.accelerate import Accelerator

        accelerator = Accelerator(run_dir="runs/a", batch=64)

    The first ``DataLoader`` that is prepared is the training data, others are for evaluation. ``accelerator.job`` is
    the job.
    """

    def __init__(
        self,
        *given: Any,
        run_dir: str | Path | None = None,
        batch: int | str | Path | Policy | Callable[..., int] | None = None,
        base: int | None = None,
        rule: str | Rule | Callable[..., Any] = "auto",
        statistics: bool | int | str | Statistics = "auto",
        epochs: int | None = None,
        schedule: str = "progress",
        seed: int = 0,
        **options: Any,
    ) -> None:
        require_known_release(accelerate.Accelerator, PartialState, accelerate.__version__)
        _refuse(given, options)
        if schedule not in MODES:
            raise ConfigError(f"schedule is {schedule!r}; expected one of {', '.join(map(repr, MODES))}.")
        PartialState(cpu=bool(options.get("cpu")))  # a launcher's group is made here
        self._world = open_world("cpu" if options.get("cpu") else "auto")
        become_one_process(self._world.device)
        self._joined_rank: int | None = None
        self._asked = {"batch": batch, "base": base, "rule": rule, "statistics": statistics, "seed": seed}
        self._run_dir, self._schedule = run_dir, schedule
        self._follow()
        super().__init__(*given, **options)
        self._run = TrainingRun(epochs=epochs, schedule=schedule, scaler=self.scaler, follow=self._follow)
        self._evaluations: list[EvaluationPass] = []

    @property
    def job(self) -> Job:
        """The job, once the training data are prepared."""
        if self._run.job is None:
            raise LoopError("there is no job yet; expected the training data. Call accelerator.prepare first.")
        return self._run.job

    def _follow(self) -> None:
        """Number the process as its replica is; before it joins an elastic run, by its name, so one of all is main."""
        run = getattr(self, "_run", None)
        if run is not None and run.job is not None and run.job.engine.recovery.joined:
            rank = run.job.rank
        elif self._world.elastic:
            rank = read_environment().swell_member or 0
        else:
            rank = self._world.collective.rank
        if rank != self._joined_rank:
            self._joined_rank = rank
            follow_rank(rank, elastic=self._world.elastic)

    # What the script prepares

    def prepare_data_loader(self, data_loader: Any, device_placement: bool | None = None, *others: Any) -> Any:
        """The training data of the job, or evaluation data that replicas split."""
        place = self.device_placement if device_placement is None else device_placement
        put: Callable[[Any], Any] = (
            (lambda batch: send_to_device(batch, self.device)) if place else (lambda batch: batch)
        )
        if self._run.job is not None:
            evaluation = EvaluationPass(data_loader, lambda: self.job.engine.peers, put)
            self._evaluations.append(evaluation)
            return evaluation
        asked = dict(self._asked)
        if asked["batch"] is None:
            if data_loader.batch_size is None:
                raise ConfigError(
                    "batch is None, and the training loader has no batch_size; expected one of them. Give "
                    "Accelerator(batch=...) the global batch."
                )
            asked["batch"] = data_loader.batch_size * self.gradient_accumulation_steps
        job = Job(self._run_dir, micro=data_loader.batch_size, device=self.device, progress=False, world=self._world,
                  **asked)  # fmt: skip
        loader = job_loader(job, data_loader, drop_last=bool(getattr(data_loader, "drop_last", False)))
        self._run.take_data(job, loader)
        return TrainingPass(loader, lambda: map(put, self._run.batches()), per_step=self.gradient_accumulation_steps)

    def prepare_model(self, model: Any, device_placement: bool | None = None, evaluation_mode: bool = False) -> Any:
        """The model on its device, with autocast and compilation; the one that is trained belongs to the job."""
        if not evaluation_mode:
            if self._run.model is not None and any(parameter.requires_grad for parameter in model.parameters()):
                refuse_second("model")
            self._run.model = model
        return super().prepare_model(model, device_placement=device_placement, evaluation_mode=evaluation_mode)

    def prepare_optimizer(self, optimizer: Any, device_placement: bool | None = None) -> Any:
        """What the script steps in place of the optimizer."""
        if self._run.optimizer is not None:
            refuse_second("optimizer")
        self._run.optimizer = optimizer
        self._optimizers.append(optimizer)
        return StandInOptimizer(optimizer, self._run.step)

    def prepare_scheduler(self, scheduler: Any) -> Any:
        """What the script steps in place of the scheduler."""
        if self._run.scheduler is not None:
            refuse_second("scheduler")
        self._run.scheduler = scheduler
        self._schedulers.append(scheduler)
        return StandInScheduler(scheduler, by=self._schedule, training=lambda: self._run.training)

    # The script's loop

    def backward(self, loss: torch.Tensor, *, weight: Any = None, **options: Any) -> None:
        """Add the gradient of a micro-batch's mean loss; ``weight`` is what it is a mean over, such as tokens."""
        self._run.backward(loss, weight, options)

    def accumulate(self, *models: Any) -> Any:
        """Nothing to do: the job accumulates by itself."""
        return contextlib.nullcontext()

    @property
    def sync_gradients(self) -> bool:
        """Whether the micro-batch under way completes the step on this worker."""
        return self._run.is_last

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        """Clip the whole step's gradient in its update; the norm that is returned is filled in there."""
        return self._run.clip_norm(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Clip each element of the whole step's gradient in its update."""
        self._run.clip_value(parameters, clip_value)

    # What replicas bring together

    @property
    def _together(self) -> bool:
        """Whether an exchange finds every process: in a fixed group, outside the loop over training data."""
        return not self._world.elastic and self._world.collective.size > 1 and not self._run.training

    def gather(self, tensor: Any) -> Any:
        """All processes' tensors; in the training loop, and in an elastic world, this one's own."""
        return gathered(tensor, self._world.collective) if self._together else tensor

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """What all processes computed on evaluation data, each sample once."""
        if not self._together:
            return input_data
        counts = all(each.counts for each in self._evaluations)
        return gathered(input_data, self._world.collective, counts=counts, as_objects=use_gather_object)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """The sum or mean over all processes; in the training loop, and in an elastic world, this one's own."""
        if not self._together or reduction == "none":
            return tensor
        return reduced(tensor, self._world.collective, mean=reduction == "mean", scale=scale)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: Any = 0, pad_first: bool = False) -> Any:
        """Tensors as long as the longest of all processes."""
        if not self._together:
            return tensor
        return padded(tensor, self._world.collective, dim=dim, value=pad_index, first=pad_first)

    # Files

    def save_state(self, output_dir: str | None = None, *others: Any, **options: Any) -> Any:
        """Save the run in its own folder, from which it resumes; the first worker also writes ``output_dir``."""
        if self._run_dir is not None:
            self._run.save()
        if output_dir is not None and self.is_main_process:
            return super().save_state(output_dir, *others, **options)
        return output_dir

    def load_state(self, input_dir: str | None = None, *others: Any, **options: Any) -> None:
        """Load a folder of ``save_state``, unless the run resumes from its own, which is at least as new."""
        if self._run.training:
            raise LoopError("load_state was called in the training loop; expected before it. Move it there.")
        if self._run_dir is None or not any((Path(self._run_dir) / "checkpoints").glob("*")):
            super().load_state(input_dir, *others, **options)

    def end_training(self) -> None:
        """Close trackers, save the run and leave."""
        super().end_training()
        self._run.end()


class TrainingPass:
    """The training data as the script sees them: iterated once an epoch, with the length of the plain loader.

    ``per_step`` is the script's own number of accumulated batches: its arithmetic with the length stays right.
    """

    def __init__(self, loader: Any, batches: Callable[[], Iterator[Any]], *, per_step: int) -> None:
        self._loader, self._batches, self._per_step = loader, batches, per_step

    def __iter__(self) -> Iterator[Any]:
        return self._batches()

    def __len__(self) -> int:
        return len(self._loader) * self._per_step

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":
            raise AttributeError(name)
        return getattr(self._loader, name)


def _refuse(given: tuple[Any, ...], options: dict[str, Any]) -> None:
    if given:
        raise ConfigError("Accelerator was given arguments without names; expected names. Write cpu=True, and so on.")
    config = options.get("dataloader_config")
    ways = {name: options.get(name) for name in REFUSED}
    ways |= {name: getattr(config, name, None) for name in ("split_batches", "dispatch_batches")}
    for name, value in ways.items():
        if value:
            raise ConfigError(
                f"{name} is {value!r}; expected none, because swell exchanges gradients and divides the samples "
                "itself, and every worker holds the whole model. Leave it out."
            )
