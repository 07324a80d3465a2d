"""Each backend is tested in a process of its own: ``make test-keras``. Without Keras only pure parts are collected."""

# pyright: reportMissingImports=false, reportMissingModuleSource=false, reportAttributeAccessIssue=false
from __future__ import annotations

import importlib.util
import os
import sys

collect_ignore_glob: list[str] = []
if importlib.util.find_spec("keras") is None:
    collect_ignore_glob = ["test_[!l]*.py", "toy.py", "spread.py", "*_worker.py"]  # all but test_layout.py
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
