"""Names of a package that are loaded when they are first used, so that importing the package is quick."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, home_of: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions ``__getattr__`` and ``__dir__`` of a package that offers these names besides what it defines.

    ``home_of`` says which module each is in; one that has the name itself is the value.
    """
    namespace = vars(sys.modules[package])

    def load(name: str) -> Any:
        if name not in home_of:
            offered = ", ".join(namespace["__all__"])
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it offers {offered}")
        home = importlib.import_module(home_of[name])
        value = home if home_of[name] == f"{package}.{name}" else getattr(home, name)
        namespace[name] = value  # so this function runs only once for each name
        return value

    return load, lambda: sorted({*namespace, *namespace["__all__"]})
