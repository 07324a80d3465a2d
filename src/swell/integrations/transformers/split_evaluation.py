"""An evaluation split over the replicas by whole batches, so that it says the same on any number of them.

Hugging Face's evaluation loss is a mean of batch losses. If replicas cut the data into other batches than one process,
a loss over tokens would depend on their number. So each replica gets a run of the batches that one process would have.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader, IterableDataset
from transformers.trainer_pt_utils import nested_concat
from transformers.trainer_utils import EvalPrediction, denumpify_detensorize

from swell.checkpoint.transfer import share_state
from swell.core.protocols import Collective
from swell.data.evaluation import batches_of, share


def can_split(loader: Any, args: Any) -> bool:
    """Whether each replica may read a part of this loader; otherwise each evaluates all of it, which is as right."""
    splits = isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)
    return splits and loader.batch_size is not None and not (args.batch_eval_metrics or args.include_for_metrics)


def part_of(loader: DataLoader[Any], *, rank: int, replicas: int) -> DataLoader[Any]:
    """One replica's run of a loader's batches, in order."""
    number = -(-len(loader.dataset) // int(loader.batch_size or 1))  # type: ignore[arg-type]
    return batches_of(loader, share(number, rank=rank, replicas=replicas))


def merged(
    output: Any, collective: Collective, *, prefix: str, compute_metrics: Callable[..., Any] | None
) -> dict[str, Any]:
    """The metrics of all replicas' parts and the number of samples; every replica calls it with its own output.

    The first replica computes the metrics and the others receive them, so that all of them decide alike.
    """
    name = f"{prefix}_loss"
    own = {
        "samples": output.num_samples,
        "loss": output.metrics.get(name),
        "predictions": output.predictions,
        "labels": output.label_ids,
    }
    parts = [share_state(own, collective=collective, source=rank) for rank in range(collective.size)]
    parts = [part for part in parts if part["samples"]]
    result: dict[str, Any] | None = None
    if collective.rank == 0:
        samples = sum(part["samples"] for part in parts)
        metrics: dict[str, Any] = {}
        predictions, labels = (_joined([part[key] for part in parts]) for key in ("predictions", "labels"))
        if compute_metrics is not None and predictions is not None and labels is not None:
            computed = denumpify_detensorize(compute_metrics(EvalPrediction(predictions=predictions, label_ids=labels)))
            metrics = {key if key.startswith(f"{prefix}_") else f"{prefix}_{key}": computed[key] for key in computed}
        if samples and all(part["loss"] is not None for part in parts):
            metrics[name] = sum(part["samples"] * part["loss"] for part in parts) / samples
        result = {"metrics": metrics, "samples": samples}
    return share_state(result, collective=collective, source=0)


def _joined(parts: list[Any]) -> Any:
    if not parts or any(part is None for part in parts):
        return None
    whole = parts[0]
    for part in parts[1:]:
        whole = [*whole, *part] if isinstance(whole, list) else nested_concat(whole, part, padding_index=-100)
    return whole
