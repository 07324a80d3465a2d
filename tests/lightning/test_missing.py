"""Without Lightning, the first use says what to install."""

from __future__ import annotations

import sys

import pytest

from swell.errors import DependencyError


def test_a_missing_lightning_is_named_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import swell.lightning  # importing the module alone needs nothing

    monkeypatch.setitem(sys.modules, "lightning", None)
    monkeypatch.delitem(vars(swell.integrations.lightning), "Strategy", raising=False)
    with pytest.raises(DependencyError, match=r"Lightning is not installed.*pip install '\.\[lightning\]'"):
        swell.lightning.Strategy(batch=8)


def test_other_names_are_refused() -> None:
    import swell.lightning

    with pytest.raises(AttributeError, match="it offers Strategy"):
        _ = swell.lightning.Trainer  # type: ignore[attr-defined]
