"""The page that shows runs, put together from its parts into one file that loads nothing."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from string import Template
from typing import Any

_SCRIPTS = ("locale.js", "uPlot.iife.min.js", "page.js")
_STYLES = ("uPlot.min.css", "page.css")


def page(
    *, title: str, runs: Sequence[dict[str, Any]], footer: str, live: bool = False, nonce: str | None = None
) -> str:
    """The whole page as HTML: style, scripts and the documents of the runs are inside it.

    Without a ``nonce`` the page itself forbids everything but its own scripts, by their hashes, and all connections.
    With one its server says so in a header, which allows connections to itself.
    """
    scripts = [_part(name) for name in (*_SCRIPTS, *(("live.js",) if live else ()))] + ["Swell.begin();"]
    style = "\n".join(_part(name) for name in _STYLES)
    mark = "" if nonce is None else f' nonce="{nonce}"'
    policy = (
        "" if nonce is not None else f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts, style)}">'
    )
    data = json.dumps({"runs": list(runs)}, separators=(",", ":"), allow_nan=False)
    return Template(_part("page.html")).substitute(
        title=html.escape(title),
        csp=policy,
        nonce=mark,
        style=style,
        footer=html.escape(footer),
        data=data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"),
        scripts="\n".join(f"<script{mark}>{script}</script>" for script in scripts),
    )


def licence() -> str:
    """The licence of uPlot, which every page contains."""
    return _part("uPlot.LICENSE")


@cache
def _part(name: str) -> str:
    return files("swell.telemetry.page").joinpath(name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str], style: str) -> str:
    allowed = " ".join(_hash(script) for script in scripts)
    return f"default-src 'none'; script-src {allowed}; style-src {_hash(style)}; img-src data:"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
