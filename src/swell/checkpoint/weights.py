"""The weights that a run saved: a model's state dict out of a checkpoint, without a job."""

from __future__ import annotations

from pathlib import Path

import torch

from swell.checkpoint.folder_names import FOLDER
from swell.checkpoint.reading import Checkpoint, read_parts
from swell.checkpoint.store import Store
from swell.errors import CheckpointError

PARTS = ("learners", "trainees")  # the part that holds a job's models; the second name is that of older checkpoints
MODEL = "model"  # the key of a model's state dict within its learner


def load_weights(run_dir: Path | str, name: str | None = None, *, index: int = 0) -> dict[str, torch.Tensor]:
    """The state dict of a model from the newest checkpoint of a run, or from the newest one saved under ``name``.

    Tensors are in host memory. ``index`` counts the calls of ``job.wrap``, for a run with several models. Every byte of
    the checkpoint is checked, damaged checkpoints are passed over with a warning, and no code from a file is run. Needs
    no job and no process group, also for the checkpoints of sharded models. Raises ``CheckpointError`` if there is no
    such checkpoint or no such model.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> state = {"learners": [{"model": {"weight": torch.ones(2)}}]}
    >>> saved = Store(folder).save(state, samples=128, step=1, name="best")
    >>> load_weights(folder, "best")
    {'weight': tensor([1., 1.])}
    """
    checkpoint = _chosen(Path(run_dir), name)
    parts = [part.name for part in checkpoint.manifest.parts]
    part = next((part for part in PARTS if part in parts), None)
    if part is None:
        raise CheckpointError(
            f"checkpoint {checkpoint.path} has the parts {', '.join(parts)}; expected {PARTS[0]!r}, which a swell.Job "
            f"saves. Load it with swell.checkpoint.Store."
        )
    if checkpoint.has_shards:
        from swell.checkpoint.shard_files import read_whole  # not at the top, because it is slow to import

        learners = read_whole(checkpoint, part, below=f"{part}[{index}][{MODEL!r}]")
    else:
        learners = read_parts(checkpoint, map_location="cpu", names=[part])[part]
    if not 0 <= index < len(learners):
        raise CheckpointError(
            f"index is {index}; expected 0 to {len(learners) - 1}: checkpoint {checkpoint.path} has {len(learners)} "
            f"model(s). Give the number of its job.wrap call, counted from 0."
        )
    return learners[index][MODEL]


def _chosen(run_dir: Path, name: str | None) -> Checkpoint:
    if not run_dir.is_dir():
        raise CheckpointError(f"run_dir is {str(run_dir)!r}; expected an existing run folder. Give the job's run_dir.")
    store = Store(run_dir)
    checkpoint = store.newest() if name is None else store.named(name)
    if checkpoint is not None:
        return checkpoint
    names = sorted({complete.name for complete in store.all() if complete.name is not None})
    if name is None or not store.all():
        raise CheckpointError(
            f"run_dir is {str(run_dir)!r}; expected a run folder with a complete checkpoint below {FOLDER}/. Give the "
            f"job's run_dir, and let the job save at least once."
        )
    expected = f"one of {', '.join(map(repr, names))}" if names else "None, because no checkpoint has a name"
    raise CheckpointError(f"name is {name!r}; expected {expected}. Give another name, or None for the newest.")
