"""What larger steps were worth in branches from one state, for ``swell tune --branch``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from swell.cli.table import print_note, print_table
from swell.core.branch_worth import critical_batch_of_draws, worths
from swell.core.moments import efficiency
from swell.errors import ConfigError


def branch_table(findings: Mapping[str, Any]) -> dict[str, Any]:
    """The worth of each batch with its error, the critical batch, and the same by the noise, as plain values."""
    base, noise = findings["base"], findings["noise"]
    draws: dict[int, dict[int, list[tuple[int, float]]]] = {}
    for point in findings["points"]:
        draws.setdefault(point["draw"], {}).setdefault(point["batch"], []).append((point["steps"], point["loss"]))
    found = worths(list(draws.values()), base=base)
    critical = critical_batch_of_draws(list(draws.values()), base=base)
    if critical is None:
        raise ConfigError(
            f"{findings['steps']} base steps made no progress on the probe samples; expected a lower loss than before, "
            f"to compare larger batches with. Give longer branches (--steps), or branch earlier in the run."
            if any(len(draw) > 1 for draw in draws.values())
            else "no batch is larger than the base batch; expected a --max of two base batches or more, a data set "
            "that has four of them for training, and --steps of 6 or more."
        )
    scale = math.inf if noise is None or noise["signal"] <= 0 else noise["noise"] / noise["signal"]
    rows = []
    for one in found:
        kappa = one.batch / base
        law = None
        if noise is not None:
            law = kappa * efficiency(one.batch, base_batch=base, noise_scale=scale, power=findings["worth_power"])
        rows.append(
            {
                "batch": one.batch,
                "worth": one.worth,
                "error": one.error,
                "margin": _plain(one.margin),
                "draws": one.draws,
                "counted": law,
                "samples": kappa / one.worth if one.worth > 0 else None,
            }
        )
    bounds = [_plain(critical.low), _plain(critical.high)]
    return {
        "base": base,
        "at_step": findings["at_step"],
        "steps": findings["steps"],
        "critical_batch": {"batch": _plain(critical.batch), "interval": bounds},
        "noise_scale": None if noise is None else {"batch": _plain(scale), "interval": noise["interval"]},
        "rows": rows,
        "points": findings["points"],
    }


def show_branches(table: Mapping[str, Any]) -> None:
    """Print the table."""
    lines = [
        (
            f"{row['batch']}",
            f"{row['worth']:.2f}" + ("" if row["margin"] is None else f" ± {row['margin']:.2f}"),
            "?" if row["counted"] is None else f"{row['counted']:.2f}",
            "?" if row["samples"] is None else f"{row['samples']:.2f}",
        )
        for row in table["rows"]
    ]
    base, draws = table["base"], max(row["draws"] for row in table["rows"])
    print_table(("batch", "worth", "counted", "samples"), lines, title=f"A step, in steps at a batch of {base}")
    critical = table["critical_batch"]
    print_note(
        f"Critical batch size {_words(critical['batch'])} samples ({_words(critical['interval'][0])} to "
        f"{_words(critical['interval'][1])}) by {draws} draws of branches of {table['steps']} base steps, from step "
        f"{table['at_step']}."
    )
    noise = table["noise_scale"]
    if noise is not None:
        low, high = map(_words, noise["interval"])
        print_note(f"By the gradient noise at the same state: {_words(noise['batch'])} ({low} to {high}).")
    print_note(
        "worth: base steps to the same loss on the same probe samples, after the same decay of the learning rate, with "
        "its 95 % interval; counted: what the job would add to its progress, by the noise; samples: those of the "
        "larger batch for one of the base batch."
    )


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _words(value: float | None) -> str:
    return "infinity" if value is None else f"{value:,.0f}"
