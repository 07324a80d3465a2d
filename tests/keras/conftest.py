"""Each backend is tested in a process of its own: ``make test-keras``. Without Keras only pure parts are collected."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

PURE = ("test_array_store.py", "test_layout.py")

collect_ignore: list[str] = []
if importlib.util.find_spec("keras") is None:
    collect_ignore = [path.name for path in Path(__file__).parent.glob("*.py") if path.name not in PURE]
else:
    os.environ.setdefault("KERAS_BACKEND", "torch")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if os.environ["KERAS_BACKEND"] == "jax":  # four devices out of one processor
        os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
        import jax

        jax.config.update("jax_compilation_cache_dir", os.path.join(sys.prefix, "jax-cache"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    if os.environ["KERAS_BACKEND"] == "tensorflow":
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    if os.environ["KERAS_BACKEND"] == "torch":
        import torch

        torch.set_num_threads(1)
