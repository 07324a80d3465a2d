"""The mixin that lets any Hugging Face trainer run on a job; the one file that names private parts of transformers.

The trainer keeps its forward pass, its loss, its callbacks, its logs and its files. The job has the data, the batch,
the gradients, the learning rate and the place in the run. ``releases.py`` lists the private names and checks them.
"""

# pyright: reportMissingImports=false, reportAttributeAccessIssue=false
from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.optim.lr_scheduler import ReduceLROnPlateau
from transformers.trainer_callback import DefaultFlowCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, EvalLoopOutput

from swell.checkpoint.cadence import Cadence
from swell.core.protocols import Policy, Rule
from swell.errors import ConfigError, LoopError
from swell.integrations.accelerate.one_process import become_one_process, follow_rank
from swell.integrations.training_source import job_loader
from swell.integrations.transformers.figures import Figures
from swell.integrations.transformers.flow import BaseStepFlow
from swell.integrations.transformers.loss_items import items_in
from swell.integrations.transformers.record import TrainerRecord
from swell.integrations.transformers.refusals import refuse_arguments, refuse_devices, refuse_generating
from swell.integrations.transformers.releases import require_known_release
from swell.integrations.transformers.resuming import run_folder, takes_weights
from swell.integrations.transformers.split_evaluation import can_split, merged, part_of
from swell.integrations.transformers.trainer_state import captured, restore
from swell.integrations.transformers.update_watch import UpdateWatch
from swell.job import Job
from swell.loop.statistics import Statistics
from swell.runtime.at_exit import AtExit
from swell.runtime.environment import read_environment

TOLD = ("loss", "flos", "num_input_tokens_seen")  # metrics of the job that are the trainer's own


class _Stopped(Exception):
    """A callback asked to stop before the end of the run."""


class Elastic:
    """Put before a trainer's class, lets it run on whatever workers there are, at a batch that may change.

    ``batch`` chooses the global batch of every step as in :class:`swell.Job`: a number, a policy, a trace. By default
    it is ``per_device_train_batch_size * gradient_accumulation_steps``, the batch of the plain trainer on one process,
    on any number of workers. ``per_device_train_batch_size`` bounds what one worker computes at once. ``base`` is the
    batch that the learning rate was chosen for; ``rule`` lets the rate follow the batch. Every count of steps in the
    training arguments (``max_steps``, ``warmup_steps``, ``eval_steps``, ``save_steps``, ``logging_steps``) is one of
    steps at the base batch, and so is ``num_train_epochs``, so a schedule means the same at every batch.

    The run is kept in ``run_dir`` (``output_dir/swell``) every ``save`` seconds, and a script that is started again
    resumes there, on any number of workers; ``fresh=True`` starts over. ``nonfinite`` and ``statistics`` are as in
    :class:`swell.Job`. ``trainer.job`` is the job.

        class MySFT(swell.transformers.Elastic, trl.SFTTrainer): ...

        trainer = MySFT(model, args=args, train_dataset=data, batch=swell.Goodput(64, max=1024))
    """

    args: Any
    state: Any
    control: Any

    def __init__(
        self,
        *given: Any,
        batch: int | str | Path | Policy | Callable[..., int] | None = None,
        base: int | None = None,
        rule: str | Rule | Callable[..., Any] = "auto",
        statistics: bool | int | str | Statistics = "auto",
        save: float | Cadence | None = 300.0,
        run_dir: str | Path | None = None,
        nonfinite: str = "raise",
        fresh: bool | None = None,
        **options: Any,
    ) -> None:
        refuse_generating(type(self))
        if not isinstance(self, transformers.Trainer):
            raise ConfigError(
                f"{type(self).__name__} is no transformers.Trainer; expected Elastic before one. Write "
                "class MyTrainer(swell.transformers.Elastic, transformers.Trainer)."
            )
        require_known_release(transformers.Trainer, transformers.__version__)
        self._asked = {
            "batch": batch, "base": base, "rule": rule, "statistics": statistics, "save": save, "nonfinite": nonfinite,
            "fresh": fresh,
        }  # fmt: skip
        self._run_dir = run_dir
        self._generation = -1  # of the world that the trainer's ranks are of
        self._begun = False  # whether callbacks know of the step under way
        self._items: int | None = None  # of the micro-batch under way
        self._passing: dict[str, Any] = {}  # what transformers passes to its own loop
        super().__init__(*given, **options)
        self._flow = BaseStepFlow(lambda: self.job.engine.peers.mark("evaluating"))
        callbacks = self.callback_handler.callbacks
        callbacks[:] = [self._flow if type(each) is DefaultFlowCallback else each for each in callbacks]
        self._figures = Figures(self.job)
        callbacks.insert(0, self._figures)

    def create_accelerator_and_postprocess(self) -> None:
        """Make the job, then the accelerator of a single process: the job alone exchanges anything."""
        args = self.args
        refuse_arguments(args, batch_given=self._asked["batch"] is not None)
        if self._asked["batch"] is None:
            self._asked["batch"] = args.per_device_train_batch_size * args.gradient_accumulation_steps
        args.gradient_accumulation_steps = 1  # the job accumulates
        self.job = Job(
            run_folder(self._run_dir, args.output_dir),
            micro=args.per_device_train_batch_size,
            seed=args.seed if args.data_seed is None else args.data_seed,
            device=args.device if args.n_gpu <= 1 else "auto",
            progress=False,
            **self._asked,
        )
        refuse_devices(args, elastic=self.job.engine.peers.elastic)
        become_one_process(self.job.device)
        args._n_gpu = min(1, args.n_gpu)
        vars(args)["_setup_devices"] = self.job.device
        self._record = TrainerRecord(
            lambda: captured(self.state, self.control, self.callback_handler.callbacks),
            lambda saved: restore(saved, self.state, self.control, self.callback_handler.callbacks),
        )
        self.job.register("transformers", self._record)
        self._follow_world()
        super().create_accelerator_and_postprocess()
        if self.is_deepspeed_enabled or self.is_fsdp_enabled:
            raise ConfigError(
                "accelerate is set up for DeepSpeed or FSDP; expected neither, because every worker holds the whole "
                "model. Start the script with swell run or torchrun, without accelerate launch's configuration."
            )
        self.accelerator.backward = self._backward
        self.accelerator.prepare_optimizer = lambda optimizer, *_, **__: optimizer

    def train(self, resume_from_checkpoint: str | bool | None = None, *others: Any, **options: Any) -> Any:
        """Train to the end of the run, from where it is; once for each trainer.

        A run resumes from its own folder, in the middle of an epoch and on any number of workers, whether or not
        ``resume_from_checkpoint`` is given. A path takes the weights from there, where the run has not begun.
        """
        if self.job.engine.state.has_data:
            raise LoopError(
                "train() was called a second time; expected once, because a run ends where its arguments say. To go "
                "on, make another trainer with the same output_dir and a larger max_steps or num_train_epochs; to "
                "start over, one with another output_dir."
            )
        if others or options.get("trial") is not None:
            raise ConfigError(
                "train() was given a trial; expected none, because the trials of a search would share one run. Make a "
                "trainer with an output_dir of its own for each trial."
            )
        path, output_dir = resume_from_checkpoint, self.args.output_dir
        if isinstance(path, str) and takes_weights(path, run_dir=self.job.run_dir, output_dir=output_dir):
            self._load_from_checkpoint(path)
        try:
            return super().train(None, **options)
        finally:
            if self.job.replicas > 1 and not self.job.engine.peers.elastic:
                AtExit(self.job.close)  # until then its processes may evaluate together
            else:
                self.job.close()

    # The trainer's loop

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        """The lengths of the run in base steps, from the job's loader over the trainer's data."""
        self._loader = job_loader(self.job, dataloader, drop_last=args.dataloader_drop_last)
        return super().set_initial_training_values(args, self._loader)

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: Any) -> Any:
        model, loader = super()._prepare_for_training(max_steps, self._loader, None)
        by_metric = isinstance(self.lr_scheduler, ReduceLROnPlateau) or type(self.lr_scheduler).__name__ == "GreedyLR"
        self.job.wrap(
            self.model,
            self.optimizer,
            scheduler=self.lr_scheduler,
            schedule="manual" if by_metric else "progress",
            scaler=self.accelerator.scaler,
        )
        engine = self.job.engine
        engine.hooks.before_step = self._between_steps
        self._updates = UpdateWatch(
            self.args.max_grad_norm,
            rate=self._get_learning_rate,
            before=lambda: self._call_back("on_pre_optimizer_step"),
            after=lambda: self._call_back("on_optimizer_step"),
        )
        self._updates.watch(self.optimizer)
        engine.state.learners[0].last_clip = self._updates.clip  # for a worker that has no sample in its first step
        engine.recovery.join()
        if self.job.steps:  # it has stepped, in an earlier process: a scheduler need not warn
            self.optimizer._opt_called = True
        self._follow_world()
        return model, loader

    def _run_epoch(self, **passed: Any) -> None:
        """Train to the end of the run; transformers calls it for the first epoch and goes no further."""
        self._passing = passed
        stopped = first = True
        try:
            for epoch in self.job.until(steps=self.state.max_steps):
                if not first:
                    self._call_back("on_epoch_begin")
                first = False
                for inputs in self._loader:
                    self._train_on(inputs)
                self._record.at("epoch", epoch + 1, self._end_epoch)
                self._leave_if_asked()
            stopped = False
            if first:
                warnings.warn(
                    f"the run in {self.job.run_dir} has made its {self.state.max_steps} steps, so there was nothing to "
                    "train. Raise max_steps or num_train_epochs to go on, or choose another output_dir (or fresh=True) "
                    "to start over.",
                    stacklevel=2,
                )
        except _Stopped:
            pass
        if stopped:
            self.job.save()
        self._tell()
        self.control.should_training_stop = True

    def _train_on(self, inputs: Any) -> None:
        """One micro-batch: the trainer's forward pass and loss, the job's gradient and step."""
        if not self._begun:
            self._begun = True
            self._call_back("on_step_begin")
        self._items = items_in(inputs, shifts=self._loss_shifts_labels)
        self.current_gradient_accumulation_steps = 1
        counted = self._items is not None and (self.model_accepts_loss_kwargs or self.compute_loss_func is not None)
        number = torch.tensor(max(1, self._items or 0), device=self.args.device) if counted else None
        before = self.state.num_input_tokens_seen
        loss = self.training_step(self._passing["model"], inputs, number)
        metrics = self.job.metrics
        metrics.mean("loss", loss, weight=self._items)
        metrics.sum("flos", float(self.floating_point_ops(inputs)))
        self._track_num_input_tokens(inputs)
        seen, self.state.num_input_tokens_seen = self.state.num_input_tokens_seen, before
        if seen != before:
            metrics.sum("num_input_tokens_seen", seen - before)
        if not self.job.step(clip=self._updates.clip):
            self._call_back("on_substep_end")

    def _backward(self, loss: torch.Tensor, **options: Any) -> None:
        self.job.backward(loss, weight=self._items, **options)

    def _call_back(self, event: str) -> None:
        self.control = getattr(self.callback_handler, event)(self.args, self.state, self.control)

    # Between steps, on every replica

    def _between_steps(self) -> None:
        self._follow_world()
        self._record.at("step", self.job.steps, self._end_step)
        self._begun = False
        self._leave_if_asked()

    def _leave_if_asked(self) -> None:
        if self.control.should_training_stop and not self.job.engine.horizon.reached(self.job.progress):
            raise _Stopped

    def _end_step(self) -> None:
        if not self._begun:  # this replica had no sample in it
            self._call_back("on_step_begin")
        state, samples = self.state, self._loader.samples
        self._flow.previous = state.global_step
        state.global_step = min(int(self.job.progress + 1e-6), state.max_steps)
        epoch = self.job.engine.state.ledger.epoch
        state.epoch = epoch + (samples.done / samples.total if samples.total else state.global_step / state.max_steps)
        self._call_back("on_step_end")
        self._log_save_evaluate()

    def _end_epoch(self) -> None:
        self._call_back("on_epoch_end")
        self._log_save_evaluate()

    def _log_save_evaluate(self) -> None:
        if self.control.should_log and self.state.global_step > self._globalstep_last_logged:
            self._tell()
        passing = {name: self._passing[name] for name in ("model", "trial", "ignore_keys_for_eval", "start_time")}
        self._maybe_log_save_evaluate(
            self._tr_loss,
            self._updates.grad_norm,
            epoch=self.state.epoch,
            learning_rate=self._updates.learning_rate,
            **passing,
        )

    def _tell(self) -> None:
        """Hand the mean loss since the last log to the trainer, which divides a sum by its steps."""
        results = self.job.metrics.results()
        self.current_flos += results.get("flos", 0.0)
        self.state.num_input_tokens_seen += int(results.get("num_input_tokens_seen", 0))
        self._figures.metrics = {name: value for name, value in results.items() if name not in TOLD}
        steps = max(1, self.state.global_step - self._globalstep_last_logged)
        self._tr_loss = torch.tensor(results.get("loss", 0.0) * steps, dtype=torch.float64, device="cpu")

    # Evaluation, files and ranks

    def _evaluate(self, trial: Any, ignore_keys_for_eval: Any, skip_scheduler: bool = False) -> dict[str, float]:
        if not skip_scheduler:
            return super()._evaluate(trial, ignore_keys_for_eval)
        metrics: dict[str, float] = {}  # before the first step: once in a run, not on workers that join later
        act = super()._evaluate
        self._record.at("start", 1, lambda: metrics.update(act(trial, ignore_keys_for_eval, skip_scheduler=True)))
        return metrics

    def evaluation_loop(
        self,
        dataloader: Any,
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> Any:
        """Evaluate on every replica's part of the data, and say the same on each; predictions are made on each."""
        peers, recovery, act = self.job.engine.peers, self.job.engine.recovery, super().evaluation_loop
        in_moment = self._record.in_moment
        together = peers.size > 1 and (in_moment or (not peers.elastic and recovery.joined))
        if description != "Evaluation" or not together or not can_split(dataloader, self.args):
            return act(dataloader, description, prediction_loss_only, ignore_keys, metric_key_prefix)

        def compute() -> dict[str, Any]:
            self._follow_world()
            part = part_of(dataloader, rank=peers.rank, replicas=peers.size)
            compute_metrics, self.compute_metrics = self.compute_metrics, None
            try:
                part = self.accelerator.prepare(part)
                output = act(part, description, prediction_loss_only, ignore_keys, metric_key_prefix)
            finally:
                self.compute_metrics = compute_metrics
            return merged(output, peers.collective, prefix=metric_key_prefix, compute_metrics=compute_metrics)

        result = self._record.evaluation(recovery.together, compute) if in_moment else compute()
        metrics = dict(result["metrics"])
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=result["samples"])

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.job.is_main:
            super()._save_checkpoint(model, trial)
            return
        state = self.state  # the others only remember which folder has the best model
        if state.best_global_step:
            best = os.path.join(self._get_output_dir(trial), f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}")
            if state.best_global_step == state.global_step or os.path.exists(best):
                state.best_model_checkpoint = best

    def _follow_world(self) -> None:
        """Number the process as its replica; a worker that becomes the first one begins to report."""
        peers = self.job.engine.peers
        if peers.generation == self._generation:
            return
        self._generation = peers.generation
        before = peers.elastic and not self.job.engine.recovery.joined  # then by its name, so that one of all is first
        follow_rank((read_environment().swell_member or 0) if before else peers.rank, elastic=peers.elastic)
        state = getattr(self, "state", None)
        if state is None:
            return
        promoted = self._passing and not state.is_world_process_zero and self.is_world_process_zero()
        state.is_world_process_zero, state.is_local_process_zero = self.is_world_process_zero(), peers.is_first
        for callback in self.callback_handler.callbacks if promoted else ():
            if type(callback).__module__.startswith("transformers."):  # progress bars and trackers
                callback.on_train_begin(self.args, self.state, self.control, model=self.model)
