"""Options of Hugging Face's Trainer that people use: each does with a job what it does without."""

# pyright: reportMissingImports=false
from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch._dynamo.utils import counters

import swell
from swell.errors import ConfigError, DependencyError, LoopError
from swell.integrations.transformers import releases
from swell.transformers import Elastic, Figures, Trainer
from tests.trainers import tiny
from tests.trainers.transformers_worker import ARGUMENTS, mean_prediction, train
from tests.workers import run_processes


def arguments(folder: Path, **more: Any) -> Any:
    transformers.logging.set_verbosity_error()
    base = {"output_dir": str(folder), "per_device_train_batch_size": 8, "num_train_epochs": 2}
    return transformers.TrainingArguments(**{**ARGUMENTS, **base, **more})


def regression(folder: Path, *, samples: int = 48, job: dict[str, Any] | None = None, **more: Any) -> Any:
    given = {name: more.pop(name) for name in ("callbacks", "eval_dataset", "compute_metrics") if name in more}
    args, data = arguments(folder, **more), tiny.numbers(samples)
    return Trainer(model=tiny.Regression(), args=args, train_dataset=data, **given, **(job or {}))


def losses(trainer: Any) -> list[float]:
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


def test_the_best_model_is_kept_and_loaded_and_training_stops_early(tmp_path: Path) -> None:
    trainer = regression(
        tmp_path, num_train_epochs=50, learning_rate=3.0, eval_strategy="steps", eval_steps=1, save_strategy="steps",
        save_steps=1, save_total_limit=2, load_best_model_at_end=True, metric_for_best_model="eval_loss",
        eval_dataset=tiny.numbers(20, seed=2), compute_metrics=mean_prediction,
        callbacks=[transformers.EarlyStoppingCallback(2)],
    )  # fmt: skip
    trainer.train()
    evaluated = [line["eval_loss"] for line in trainer.state.log_history if "eval_loss" in line]
    assert trainer.state.global_step < trainer.state.max_steps == 300
    assert trainer.state.best_metric == min(evaluated) and evaluated[-1] > min(evaluated)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(min(evaluated), rel=1e-6)
    assert len(list(tmp_path.glob("checkpoint-*"))) <= 2


def test_max_steps_ends_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    trainer = regression(tmp_path, max_steps=4)
    trainer.train()
    assert trainer.state.global_step == 4 and trainer.state.epoch == pytest.approx(4 / 6)
    assert trainer.lr_scheduler.get_last_lr()[0] == pytest.approx(0.0)


def test_a_run_that_is_made_longer_goes_on_where_it_ended(tmp_path: Path) -> None:
    regression(tmp_path, num_train_epochs=1, lr_scheduler_type="constant").train()
    longer = regression(tmp_path, max_steps=9, lr_scheduler_type="constant")
    longer.train(resume_from_checkpoint=True)
    whole = regression(tmp_path / "whole", max_steps=9, lr_scheduler_type="constant")
    whole.train()
    assert longer.state.global_step == whole.state.global_step == 9
    assert tiny.digest(longer.model) == tiny.digest(whole.model)
    assert [line["step"] for line in longer.state.log_history if "loss" in line] == [2, 4, 6, 8]


def test_a_finished_run_says_that_there_is_nothing_to_train(tmp_path: Path) -> None:
    regression(tmp_path).train()
    with pytest.warns(UserWarning, match="nothing to train"):
        regression(tmp_path).train()
    fresh = regression(tmp_path, job={"fresh": True})
    fresh.train()
    assert fresh.state.global_step == 12


def test_a_stream_trains_for_max_steps(tmp_path: Path) -> None:
    data = tiny.Stream(tiny.numbers(20).rows)
    trainer = Trainer(model=tiny.Regression(), args=arguments(tmp_path, max_steps=7), train_dataset=data)
    trainer.train()
    assert trainer.state.global_step == 7 and len(losses(trainer)) == 3


@pytest.mark.parametrize("option", [{"gradient_checkpointing": True}, {"bf16": True}, {"torch_compile": True}])
def test_language_models_train_with(tmp_path: Path, option: dict[str, Any]) -> None:
    def trained(kind: Any, name: str) -> list[float]:
        model = tiny.language_model(torch.float32)
        args = arguments(tmp_path / name, train_sampling_strategy="sequential", max_steps=4, logging_steps=1, **option)
        trainer = kind(model=model, args=args, train_dataset=tiny.sentences(32))
        trainer.train()
        return losses(trainer)

    if "torch_compile" in option:
        option["torch_compile_backend"] = "eager"  # no compiler is needed for that
    assert trained(Trainer, "ours") == pytest.approx(trained(transformers.Trainer, "plain"), rel=1e-3)


@pytest.mark.distributed
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile's own backend needs a C++ compiler, g++")
def test_compiled_code_trains_to_the_weights_of_the_plain_trainer(tmp_path: Path) -> None:
    compiled = {"torch_compile": True, "torch_compile_backend": "inductor", "train_sampling_strategy": "sequential"}
    args = {"per_device_train_batch_size": 16, "num_train_epochs": 1, **compiled}
    chosen = {
        name: {"samples": 32, "args": {**args, "output_dir": str(tmp_path / name)}} for name in ("plain", "one", "two")
    }
    plain = train({**chosen["plain"], "plain": True})
    torch.compiler.reset()  # the plain one's code would be taken
    counters.clear()
    one = train(chosen["one"])
    assert counters["stats"]["calls_captured"] and not counters["graph_break"]
    assert one["digest"] == pytest.approx(plain["digest"], rel=1e-12)
    for result in run_processes(2, train, chosen["two"], timeout_s=300):
        assert result["digest"] == pytest.approx(plain["digest"], rel=1e-12)


def test_lora_trains_its_adapter_alone_and_saves_it(tmp_path: Path) -> None:
    model = get_peft_model(tiny.language_model(torch.float32), LoraConfig(r=2, target_modules=["c_attn"]))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    args = arguments(tmp_path, max_steps=4, save_strategy="steps", save_steps=4)
    trainer = Trainer(model=model, args=args, train_dataset=tiny.sentences(32))
    trainer.train()
    moved = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved and all("lora_" in name for name in moved)
    assert (tmp_path / "checkpoint-4" / "adapter_model.safetensors").exists()


def test_a_padding_collator_gives_the_weighted_mean_over_tokens(tmp_path: Path) -> None:
    rows = [{"input_ids": row["input_ids"][: 4 + i % 8]} for i, row in enumerate(tiny.sentences(32, uneven=False).rows)]

    def pad(samples: list[dict[str, Any]]) -> dict[str, Any]:
        longest = max(len(sample["input_ids"]) for sample in samples)
        tokens = torch.zeros(len(samples), longest, dtype=torch.long)
        labels = torch.full_like(tokens, -100)
        for row, sample in enumerate(samples):
            tokens[row, : len(sample["input_ids"])] = labels[row, : len(sample["input_ids"])] = sample["input_ids"]
        return {"input_ids": tokens, "attention_mask": (labels != -100).long(), "labels": labels}

    def trained(name: str, micro: int) -> list[float]:
        args = arguments(tmp_path / name, per_device_train_batch_size=micro, train_sampling_strategy="sequential")
        model = tiny.language_model()
        trainer = Trainer(model=model, args=args, train_dataset=tiny.Rows(rows), data_collator=pad, batch=8)
        trainer.train()
        return tiny.digest(model)

    assert trained("2", 2) == pytest.approx(trained("8", 8), rel=1e-6)


def test_noise_and_gain_are_in_the_logs_of_a_policy_that_moves_the_batch(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []

    class Tracker(transformers.TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **others: Any) -> None:
            told.append(dict(logs))

    policy = swell.Ramp(8, 32, over=3, unit="epochs")
    trainer = regression(
        tmp_path, samples=96, num_train_epochs=4, per_device_train_batch_size=8, eval_strategy="steps", eval_steps=10,
        eval_dataset=tiny.numbers(16), callbacks=[Tracker()],
        job={"batch": policy, "statistics": True, "rule": "adascale"},
    )  # fmt: skip
    trainer.train()
    trained = [line for line in told if "loss" in line]
    batches = [line["global_batch"] for line in trained]
    assert min(batches) < 16 and max(batches) == batches[-1] == 32
    assert all(line["gain"] > 0 and line["lr_factor"] > 0 for line in trained)
    assert "noise_scale" in trained[-1] and "noise_scale" in trainer.state.log_history[-3]
    # A run is as long as its base steps say, whatever the batch was; evaluations come at multiples that were passed.
    assert trainer.state.global_step == trainer.state.max_steps == 48
    assert trainer.job.steps < 48 and trainer.lr_scheduler.get_last_lr()[0] == pytest.approx(0.0)
    assert len([line for line in trainer.state.log_history if "eval_loss" in line]) >= 4
    trainer.remove_callback(Figures)


def test_callbacks_see_every_event_with_whole_gradients(tmp_path: Path) -> None:
    events: list[str] = []

    class Watch(transformers.TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            events.append("begin")

        def on_pre_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
            events.append("pre" if all(p.grad is not None for p in model.parameters()) else "pre without gradients")

        def on_optimizer_step(self, *_: Any, model: Any, **__: Any) -> None:
            events.append("post" if all(p.grad is not None for p in model.parameters()) else "post without gradients")

        def on_substep_end(self, *_: Any, **__: Any) -> None:
            events.append("sub")

        def on_step_end(self, *_: Any, **__: Any) -> None:
            events.append("end")

        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            events.append("epoch")

    trainer = regression(tmp_path, samples=32, num_train_epochs=1, callbacks=[Watch()], job={"batch": 16})
    trainer.train()
    assert events == ["begin", "sub", "pre", "post", "end"] * 2 + ["epoch"]


def test_accumulation_names_the_batch_where_none_is_given(tmp_path: Path) -> None:
    trainer = regression(tmp_path, gradient_accumulation_steps=3)
    trainer.train()
    assert trainer.job.global_batch == 24 and trainer.state.max_steps == 4


REFUSED: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"gradient_accumulation_steps": 2}, {"batch": 16}, "gradient_accumulation_steps is 2 and batch is given"),
    ({"auto_find_batch_size": True}, {}, "auto_find_batch_size is True"),
    ({"train_sampling_strategy": "group_by_length"}, {}, "train_sampling_strategy is 'group_by_length'"),
    ({"accelerator_config": {"split_batches": True}}, {}, "split_batches is True"),
    ({"accelerator_config": {"dispatch_batches": True}}, {}, "dispatch_batches is True"),
    ({"optim": "lomo"}, {}, "LOMO updates the weights inside"),
]


@pytest.mark.parametrize(("args", "job", "message"), REFUSED, ids=[message[:24] for *_, message in REFUSED])
def test_what_cannot_be_right_is_refused(tmp_path: Path, args: Any, job: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        regression(tmp_path, job=job, **args)


def test_training_twice_and_searching_are_refused(tmp_path: Path) -> None:
    trainer = regression(tmp_path, max_steps=2)
    with pytest.raises(ConfigError, match="given a trial"):
        trainer.train(trial={"lr": 1})
    trainer.train()
    with pytest.raises(LoopError, match="a second time"):
        trainer.train()
    with pytest.raises(ConfigError, match=r"is no transformers\.Trainer"):
        Elastic()


def test_a_path_gives_the_weights_of_a_run_that_has_not_begun(tmp_path: Path) -> None:
    args = arguments(tmp_path / "plain", max_steps=3, save_strategy="steps", save_steps=3)
    plain = transformers.Trainer(model=tiny.language_model(), args=args, train_dataset=tiny.sentences(16))
    plain.train()
    path = str(tmp_path / "plain" / "checkpoint-3")

    def again(**more: Any) -> Any:
        args = arguments(tmp_path / "ours", max_steps=1, **more)
        return Trainer(model=tiny.language_model(seed=9), args=args, train_dataset=tiny.sentences(16))

    ours = again(learning_rate=0.0)
    with pytest.warns(UserWarning, match="the weights of"):
        ours.train(resume_from_checkpoint=path)
    assert tiny.digest(ours.model) == tiny.digest(plain.model)
    with pytest.raises(ConfigError, match="has begun"):
        again().train(resume_from_checkpoint=path)


def test_the_newest_release_has_what_is_used_of_it() -> None:
    assert releases.moved_names(transformers.Trainer) == []


def test_a_release_that_has_moved_something_is_named() -> None:
    class Moved(transformers.Trainer):
        def _run_epoch(self, epoch: int) -> None: ...  # type: ignore[override]

    with pytest.raises(DependencyError, match=r"has no _run_epoch\(model\)"):
        releases.require_known_release(Moved, transformers.__version__)
    with pytest.raises(DependencyError, match=r"transformers is 4\.57\.6; expected at least 5\.20"):
        releases.require_known_release(transformers.Trainer, "4.57.6")
