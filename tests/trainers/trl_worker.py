"""One worker of a run with TRL's trainers through the mixin, as a function of its settings."""

# pyright: reportMissingImports=false
from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from tests.trainers import tiny


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{number}": number for number in range(tiny.WORDS - 2)}
    words |= {"<pad>": tiny.WORDS - 2, "<end>": tiny.WORDS - 1}
    made = Tokenizer(models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<end>", unk_token="w0")


def text(seed: int, length: int) -> str:
    return " ".join(f"w{(7 * seed + 3 * place) % (tiny.WORDS - 2)}" for place in range(length))


def rows(kind: str, samples: int) -> Any:
    from datasets import Dataset

    if kind == "sft":
        return Dataset.from_list([{"text": text(i, 4 + i % 7)} for i in range(samples)])
    pairs = [{"chosen": text(i, 3 + i % 3), "rejected": text(i + 1, 2 + i % 4)} for i in range(samples)]
    if kind == "dpo":
        pairs = [{"prompt": text(i + 5, 3) + " ", **pair} for i, pair in enumerate(pairs)]
    return Dataset.from_list(pairs)


def train(settings: dict[str, Any]) -> dict[str, Any]:
    """Train with these settings; the result, which the first worker also writes to ``settings["result"]``."""
    import torch
    import transformers
    import trl

    import swell

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    kind = settings["kind"]
    plain, configuration = {
        "sft": (trl.SFTTrainer, trl.SFTConfig),
        "dpo": (trl.DPOTrainer, trl.DPOConfig),
        "reward": (trl.RewardTrainer, trl.RewardConfig),
    }[kind]

    class Elastic(swell.transformers.Elastic, plain): ...  # type: ignore[misc, valid-type]

    class Slow(transformers.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
            """Slow until a second worker is there, so that it comes before the run ends on any machine."""
            if "heard" in settings:
                with open(settings["heard"], "a") as file:
                    replicas = trainer.job.replicas
                    file.write(json.dumps({"step": state.global_step, "replicas": replicas}) + "\n")
                if '"replicas": 2' not in Path(settings["heard"]).read_text():
                    time.sleep(settings["sleep"])

    args = configuration(
        output_dir=settings["folder"], use_cpu=True, report_to=[], disable_tqdm=True, optim="sgd", learning_rate=0.05,
        per_device_train_batch_size=4, num_train_epochs=2, save_strategy="no", logging_steps=2, max_length=16,
        bf16=False, gradient_checkpointing=False, dataset_num_proc=None, train_sampling_strategy="sequential",
    )  # fmt: skip
    if kind == "reward":
        torch.manual_seed(0)
        config = tiny.language_model().config
        config.num_labels, config.pad_token_id = 1, tiny.WORDS - 2
        model: Any = transformers.GPT2ForSequenceClassification(config).double()
    else:
        model = tiny.language_model()
    more: dict[str, Any] = {"ref_model": tiny.language_model()} if kind == "dpo" else {}
    trainer: Any = Elastic(
        model=model, args=args, train_dataset=rows(kind, settings.get("samples", 50)), processing_class=tokenizer(),
        callbacks=[Slow()], batch=16, **more,
    )  # fmt: skip
    output = trainer.train()
    result = {
        "digest": tiny.digest(trainer.model), "loss": output.training_loss, "steps": output.global_step,
        "first": trainer.is_world_process_zero(), "names": sorted({n for h in trainer.state.log_history for n in h}),
    }  # fmt: skip
    if "result" in settings and result["first"]:
        Path(settings["result"]).write_text(json.dumps(result))
    return result
