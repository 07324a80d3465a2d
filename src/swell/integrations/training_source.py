"""The trainer's own DataLoader, read for what the job needs: its data set, its order and how it loads."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from swell.data.fingerprint import sample_fingerprint
from swell.data.loader_options import LoaderOptions
from swell.errors import ConfigError
from swell.job import Job
from swell.job.loader import TrainingLoader


def job_loader(job: Job, loader: Any, *, drop_last: bool) -> TrainingLoader:
    """The job's loader over the data of a ``DataLoader``, with its collator, its workers and its kind of order.

    A random order becomes the job's own, which depends on seed and epoch alone; another sampler is read as it is.
    """
    if not isinstance(loader, DataLoader):
        raise ConfigError(
            f"get_train_dataloader returned a {type(loader).__name__}; expected a torch.utils.data.DataLoader, of "
            "which swell takes the data set, the collator and the order. Return one."
        )
    options = {
        name: getattr(loader, name)
        for name in LoaderOptions.__dataclass_fields__
        if name not in ("generator", "in_order")
    }
    if not options["num_workers"]:
        options |= {"prefetch_factor": None, "persistent_workers": False, "multiprocessing_context": None}
    if isinstance(loader.dataset, IterableDataset):
        return job.loader(loader.dataset, drop_last=drop_last, **options)
    if hasattr(loader.dataset, "with_format"):
        options["fingerprint"] = partial(stored_fingerprint, loader.dataset)
    sampler: Any = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if isinstance(sampler, RandomSampler) and not sampler.replacement:
        return job.loader(loader.dataset, shuffle=True, drop_last=drop_last, **options)
    if isinstance(sampler, SequentialSampler):
        return job.loader(loader.dataset, drop_last=drop_last, **options)
    return job.loader(loader.dataset, sampler=sampler, drop_last=drop_last, **options)


def stored_fingerprint(dataset: Any) -> str:
    """A fingerprint of some rows of a data set of Hugging Face ``datasets``, as they are stored.

    Its own is random where the data set was made by a function that cannot be hashed, so it differs between processes.
    """
    length, stored = len(dataset), dataset.with_format("arrow")
    places = sorted({length * part // 16 for part in range(16)}) if length else []
    return sample_fingerprint([length, [stored[place].to_pydict() for place in places]])
