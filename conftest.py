"""Doctests are looked for in every module, so that none fails to import unseen; for other libraries where they are."""

from __future__ import annotations

import importlib.util

NEED_KERAS = (
    "adapter devices elastic gradient_norms live_variables optimizer processes refusals run_events run_saving sources "
    "step_gradients tensorflow_* torch_source training"
)

collect_ignore_glob: list[str] = []
if importlib.util.find_spec("keras") is None:
    collect_ignore_glob = [f"src/swell/integrations/keras/{name}.py" for name in NEED_KERAS.split()]
    collect_ignore_glob += [
        "src/swell/compat/runai/elastic/keras/models.py",
        "src/swell/compat/runai/ga/keras/optimizers.py",
    ]
NEED_TRANSFORMERS = "elastic figures flow split_evaluation trainer trainer_state"
if importlib.util.find_spec("transformers") is None:
    collect_ignore_glob += [f"src/swell/integrations/transformers/{name}.py" for name in NEED_TRANSFORMERS.split()]
if importlib.util.find_spec("accelerate") is None:
    collect_ignore_glob += [
        f"src/swell/integrations/accelerate/{name}.py" for name in ("accelerator", "gathering", "one_process")
    ]
NEED_LIGHTNING = (
    "callback_states fabric loops metric_states passes refusals replica split_validation strategy trainer "
    "validation_figures"
)
if importlib.util.find_spec("lightning") is None:
    collect_ignore_glob += [f"src/swell/integrations/lightning/{name}.py" for name in NEED_LIGHTNING.split()]
NEED_RAY = "agent_actor cluster engine save_before_resize train_process trainer"
if importlib.util.find_spec("ray") is None:
    collect_ignore_glob += [f"src/swell/integrations/ray/{name}.py" for name in NEED_RAY.split()]
