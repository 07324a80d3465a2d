"""Doctests are looked for in every module, so that none fails to import unseen; but in Keras's only where it is."""

from __future__ import annotations

import importlib.util

NEED_KERAS = "adapter announcer devices elastic keeper live metric optimizer refusals sources tensorflow_* torch_source"

collect_ignore_glob: list[str] = []
if importlib.util.find_spec("keras") is None:
    collect_ignore_glob = [f"src/swell/integrations/keras/{name}.py" for name in NEED_KERAS.split()]
    collect_ignore_glob += [
        "src/swell/compat/runai/elastic/keras/models.py",
        "src/swell/compat/runai/ga/keras/optimizers.py",
    ]
