"""Names of another library's integration, imported when they are first used, with a clear error where it is missing."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from swell.errors import DependencyError


def on_first_use(module: str, homes: Mapping[str, str], *, needs: Mapping[str, str], hint: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a package: ``homes`` says in which of its modules each name is.

    ``needs`` are the packages that must be installed, with their names for people; ``hint`` says what is expected and
    how to install it.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}; it offers {', '.join(sorted(homes))}")
        for package, called in needs.items():
            try:
                importlib.import_module(package)
            except ModuleNotFoundError as error:
                raise DependencyError(f"{called} is not installed ({error}); {hint.format(name=name)}") from error
        value = getattr(importlib.import_module(f"{module}.{homes[name]}"), name)
        setattr(sys.modules[module], name, value)
        return value

    return get
