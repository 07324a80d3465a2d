"""From a ``DataLoader`` to the arguments of ``job.loader`` that mean the same."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from swell.data.loader_options import LoaderOptions
from swell.errors import ConfigError

_NOT_PASSED_ON = {"generator", "pin_memory_device", "in_order"}  # the job has its own, or torch deprecates it


def loader_arguments(loader: Any) -> dict[str, Any]:
    """The order and the loading options of a training loader; refuses one whose batches cannot be resized."""
    if not isinstance(loader, DataLoader):
        raise ConfigError(
            f"the training loader is a {type(loader).__name__}; expected a torch.utils.data.DataLoader, because swell "
            "reads samples by their number. Give a DataLoader with your data set."
        )
    streams = isinstance(loader.dataset, IterableDataset)
    if loader.batch_size is None or not (streams or type(loader.batch_sampler) is BatchSampler):
        raise ConfigError(
            f"the training loader has batch_size {loader.batch_size} and a {type(loader.batch_sampler).__name__}; "
            "expected a batch_size and no batch sampler of your own, because the policy chooses the batch. Give the "
            "order as sampler= and the size as batch_size=."
        )
    options = {name: getattr(loader, name) for name in LoaderOptions.__dataclass_fields__ if name not in _NOT_PASSED_ON}
    if loader.num_workers == 0:
        options.update(prefetch_factor=None, persistent_workers=False)
    order = {} if streams else {"sampler": loader.sampler}
    return {"drop_last": loader.drop_last, **order, **options}
