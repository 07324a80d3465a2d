"""Where the layout is the same, an example is its plain twin to the last bit: every weight after every step.

The twin gets the samples in the job's order, and the job stays at the base batch, where nothing is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, Dataset

import swell
from swell.core.order import Shuffled
from swell.policies import as_policy
from tests.examples.pairs import NAMES, PAIRS, run_script
from tests.examples.test_layouts import ALONE
from tests.workers import run_processes


def order(n: int, epoch: int) -> Any:
    return Shuffled(n, seed=0, epoch=epoch).indices(0, n)


class InOrder:
    """A sampler with the job's order."""

    def __init__(self, dataset: Any) -> None:
        self.n, self.epoch = len(dataset), -1

    def __iter__(self) -> Iterator[int]:
        self.epoch += 1
        return iter(order(self.n, self.epoch).tolist())

    def __len__(self) -> int:
        return self.n


class OrderedLoader(DataLoader):
    """A loader that draws nothing from the generators of the script."""

    def __init__(self, dataset: Dataset, *, shuffle: bool = False, **options: Any) -> None:
        sampler = InOrder(dataset) if shuffle else None
        super().__init__(dataset, sampler=sampler, generator=torch.Generator(), **options)


def in_order(names: dict[str, Any]) -> Any:
    """nanoGPT's ``get_batch``, which draws offsets, with the job's order."""
    place = 0

    def get_batch(data: Tensor) -> tuple[Tensor, Tensor]:
        nonlocal place
        size, block = names["batch_size"], names["block_size"]
        starts = order(len(data) - block, 0)[place : place + size]
        place += size if data is names["train_data"] else 0
        pieces = torch.stack([data[start : start + block + 1] for start in starts])
        return pieces[:, :-1], pieces[:, 1:]

    return get_batch


def weights_after_every_step(name: str, script: str, folder: str, arguments: list[str]) -> list[str]:
    digests: list[str] = []
    job, passes = swell.Job, iter(range(999))

    def at_the_base_batch(run_dir: str, *, batch: Any, **options: Any) -> swell.Job:
        return job(run_dir, batch=as_policy(batch).base, **options)

    def shuffle(indices: np.ndarray) -> None:
        indices[:] = order(len(indices), next(passes))

    def digest(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        content = b"".join(weight.detach().numpy().tobytes() for weight in weights)
        digests.append(blake2b(content, digest_size=8).hexdigest())

    swell.Job, torch.utils.data.DataLoader, np.random.shuffle = at_the_base_batch, OrderedLoader, shuffle  # type: ignore
    register_optimizer_step_post_hook(digest)
    run_script(name, script, folder, arguments, adapt)
    return digests


def adapt(names: dict[str, Any]) -> None:
    if "get_batch" in names:
        names["get_batch"] = in_order(names)


@pytest.mark.distributed
@pytest.mark.parametrize("name", NAMES)
def test_an_example_on_one_process_is_its_plain_twin_bit_for_bit(name: str, tmp_path: Path) -> None:
    (plain,), (ours,) = (
        run_processes(
            1,
            weights_after_every_step,
            name,
            script,
            str(tmp_path),
            PAIRS[name].arguments,
            environ=ALONE,
            timeout_s=120,
        )
        for script in ("train_torch.py", "train_swell.py")
    )
    assert len(plain) > 4 and plain == ours
