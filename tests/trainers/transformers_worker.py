"""One worker of a run with Hugging Face's Trainer, as a function of its settings."""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import swell
from tests.trainers import tiny

ARGUMENTS: dict[str, Any] = {
    "use_cpu": True, "report_to": [], "disable_tqdm": True, "learning_rate": 0.1, "optim": "sgd", "save_strategy": "no",
    "logging_steps": 2, "seed": 3,
}  # fmt: skip


def callbacks(settings: dict[str, Any]) -> list[Any]:
    import transformers

    class Slow(transformers.TrainerCallback):
        """Sleeps in each step; kills this worker after a step if it is told to."""

        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            time.sleep(settings.get("sleep", 0.0))
            if "heard" in settings:
                hear(settings, "step", state, replicas=os.environ.get("SWELL_MEMBER"))

        def on_prediction_step(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            kill = settings.get("kill_in_evaluation")
            if kill and state.global_step == kill["step"] and args.process_index == kill["rank"]:
                mark = Path(kill["mark"])
                if not mark.exists():
                    mark.touch()
                    os.kill(os.getpid(), signal.SIGKILL)

    class Heard(transformers.TrainerCallback):
        """Writes down what a tracker would hear, and from which process."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if state.is_world_process_zero:
                hear(settings, "begin", state)

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
            if state.is_world_process_zero:
                hear(settings, "log", state, **logs)

        def on_save(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            if args.should_save:
                hear(settings, "save", state)

    chosen: list[Any] = [Slow()]
    if "heard" in settings:
        chosen.append(Heard())
    if settings.get("patience"):
        chosen.append(transformers.EarlyStoppingCallback(settings["patience"]))
    return chosen


def hear(settings: dict[str, Any], event: str, state: Any, **logs: Any) -> None:
    with open(settings["heard"], "a") as file:
        line = {"event": event, "step": state.global_step, "pid": os.getpid(), **logs}
        file.write(json.dumps({**line, "step": state.global_step}) + "\n")


def mean_prediction(predictions: Any) -> dict[str, float]:
    return {"mean": float(predictions.predictions.mean()), "rows": len(predictions.label_ids)}


def token_loss(outputs: Any, labels: Any, num_items_in_batch: Any = None) -> Any:
    """The loss of Hugging Face's causal language models, in the model's own dtype instead of float32."""
    import torch

    logits, targets = outputs["logits"][:, :-1], labels[:, 1:]
    sums = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    return sums / num_items_in_batch


def train(settings: dict[str, Any]) -> dict[str, Any]:
    """Train with these settings; the result, which the first worker also writes to ``settings["result"]``."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    tokens = settings.get("data") == "sentences"
    make: Any = tiny.sentences if tokens else tiny.numbers
    args = transformers.TrainingArguments(**{**ARGUMENTS, **settings["args"]})
    model = tiny.language_model() if tokens else tiny.Regression()
    options: dict[str, Any] = {"model": model, "args": args, "train_dataset": make(settings["samples"])}
    if settings.get("stream"):
        options["train_dataset"] = tiny.Stream(options["train_dataset"].rows)
    if settings.get("eval"):
        options["eval_dataset"] = make(settings["eval"], seed=2)
        options["compute_metrics"] = None if tokens else mean_prediction
    options["callbacks"] = callbacks(settings)
    options["compute_loss_func"] = token_loss if settings.get("own_loss") else None
    job = dict(settings.get("job", {}))
    if "ramp" in job:
        job["batch"] = swell.Ramp(*job.pop("ramp"), over=2, unit="epochs")
    kind: Any = transformers.Trainer if settings.get("plain") else swell.transformers.Trainer
    trainer = kind(**options, **job)
    output = trainer.train(**settings.get("train", {}))
    result = {
        "digest": tiny.digest(trainer.model), "loss": output.training_loss, "steps": output.global_step,
        "history": trainer.state.log_history, "best": trainer.state.best_model_checkpoint,
        "lr": trainer.lr_scheduler.get_last_lr()[0], "first": trainer.is_world_process_zero(),
        "evaluation": trainer.evaluate() if settings.get("eval") else None,
    }  # fmt: skip
    if "result" in settings and result["first"]:
        Path(settings["result"]).write_text(json.dumps(result))
    return result
