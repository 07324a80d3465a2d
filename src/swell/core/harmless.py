"""Text of unknown origin made harmless for a terminal: what would move its cursor or change its state is shown."""

from __future__ import annotations

import re

# Control characters but for the tab, the marks that make a terminal show text in another order than it is written, and
# halves of characters, which cannot be written at all.
_DANGEROUS = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


def harmless(text: str) -> str:
    r"""The text on one line, with control characters spelled out.

    >>> harmless("loss 0.1\x1b]0;title\x07")
    'loss 0.1^[]0;title^G'
    >>> harmless("tab\tstays, \u202eorder too")
    'tab\tstays, <U+202E>order too'
    """
    return _DANGEROUS.sub(_spelled, text)


def _spelled(match: re.Match[str]) -> str:
    code = ord(match.group())
    if code < 0x20:
        return f"^{chr(code + 0x40)}"
    return "^?" if code == 0x7F else f"<U+{code:04X}>"
