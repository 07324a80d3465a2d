"""``init`` for Keras, and ``models.Model``: one global batch on the devices Keras trains on, on any backend."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import importlib
import warnings
from typing import Any

from swell.compat.runai import elastic
from swell.core.counts import whole_number


def init(global_batch_size: int, max_gpu_batch_size: int, gpus: int | None = None) -> None:
    """Lay out ``global_batch_size`` so that no device holds more than ``max_gpu_batch_size`` samples at once.

    ``gpus`` counts the devices that train. It defaults to those of ``keras.distribution`` (JAX), of the
    ``tf.distribute`` strategy in scope, or to the processes of the torch group; else to 1. Sets
    ``runai.elastic.steps``, ``batch_size``, ``global_batch_size``, ``gpus`` and ``master``. A batch that does not
    divide evenly stays within the bound and is still exact.

    >>> init(256, 64, gpus=2)
    >>> elastic.steps, elastic.batch_size
    (2, 64)
    """
    rank, devices = (0, gpus) if gpus is not None else _rank_and_devices()
    gpus = whole_number(devices, name="gpus")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about a batch that does not divide: models.Model lays out any batch exactly
        elastic.establish(global_batch_size, max_gpu_batch_size, gpus=gpus, master=rank == 0)


def _rank_and_devices() -> tuple[int, int]:
    """This process's rank, and how many devices train."""
    import keras

    from swell.integrations.keras.devices import devices_in_scope, processes

    world = processes()
    return (0, devices_in_scope()) if world is None or keras.backend.backend() != "torch" else (world.rank, world.size)


def __getattr__(name: str) -> Any:
    if name == "models":
        return importlib.import_module(f"{__name__}.models")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
