"""Why the goodput policy chose as it did, in sentences."""

from __future__ import annotations

from typing import Literal, NamedTuple

from swell.core.moments import efficiency
from swell.core.types import Decision, Layout, Observation


class Choice(NamedTuple):
    """What was chosen by which rule, and the figures that spoke for it."""

    rule: Literal["start", "probe", "reach", "unsure", "dwell", "weigh"]
    layout: Layout
    promised: Layout | None = None  # the best other layout, where it was not good enough
    noise_scale: float | None = None
    sure: bool = True  # of the noise scale; else it is what the noise scale is at least, and the batch may only grow
    step_s: float | None = None  # predicted for the best layout
    error: float | None = None
    goodput: float | None = None
    best_goodput: float | None = None  # of any layout; the largest batch close to it is chosen
    current_step_s: float | None = None
    current_goodput: float | None = None
    needed: float = 0.0
    hope: float = 0.0  # by how much it may be better than predicted, where that decided


def decision(choice: Choice, seen: Observation, *, base: int) -> Decision:
    """The choice as a record for the log: sentences for people, numbers for tools."""
    current = None
    if seen.micro_batch is not None:
        current = Layout(global_batch=seen.batch, micro_batch=seen.micro_batch)
    held = choice.promised is not None
    return Decision(
        chosen=choice.layout,
        current=current,
        reasons=tuple(_reasons(choice, seen, base)),
        goodput=choice.current_goodput if held else choice.goodput,
        current_goodput=choice.current_goodput,
        inputs=_inputs(choice, seen),
    )


def _reasons(choice: Choice, seen: Observation, base: int) -> list[str]:
    said = []
    if seen.resized:
        nodes = f" on {seen.nodes} nodes" if seen.nodes > 1 else ""
        said.append(f"The world changed to {seen.replicas} replica{'s' if seen.replicas > 1 else ''}{nodes}.")
    if seen.max_micro is not None and choice.layout.micro_batch <= seen.max_micro:
        said.append(f"Micro-batches have at most {seen.max_micro} samples: memory ran out at more, or the run asks so.")
    chosen = _words(choice.layout)
    if choice.rule == "start":
        said.append(f"No step was measured yet: the run goes on with {chosen}.")
    elif choice.rule == "probe":
        known = sorted({point.micro_batch for point in seen.profile})
        said.append(
            f"Only micro-batches of {' and '.join(map(str, known))} samples were measured, which does not tell what a "
            f"sample costs: {chosen} is tried for a few steps."
        )
    elif choice.rule == "reach":
        said.append(f"No larger batch was measured in this world: {chosen} is tried for a few steps.")
    else:
        said += _weighed(choice, seen, base)
    return said


def _weighed(choice: Choice, seen: Observation, base: int) -> list[str]:
    said = []
    if choice.rule == "unsure":
        said.append(f"{_doubt(seen)}, so the global batch stays at {choice.layout.global_batch}.")
    elif choice.rule == "dwell":
        since = seen.samples - seen.batch_since
        said.append(f"The global batch changed {since} samples ago and stays at {choice.layout.global_batch} for now.")
    if choice.promised is not None and choice.goodput is not None and choice.current_goodput:
        promise = choice.goodput / choice.current_goodput - 1
        if promise > 1e-9:
            said.append(
                f"{_words(choice.promised)} promises {promise:.1%} more goodput; a change must promise more than "
                f"{choice.needed:.1%}."
            )
        elif choice.rule == "weigh" and choice.sure:
            said.append(f"No other layout promises more than {_words(choice.layout)}.")
        elif choice.rule == "weigh":
            said.append(f"{_doubt(seen)}, and at its least no larger batch promises more.")
        return said
    if choice.step_s is None or choice.goodput is None:
        return said or [f"The bounds leave nothing to choose but {_words(choice.layout)}."]
    if choice.noise_scale is not None and choice.rule == "weigh":
        worth = efficiency(choice.layout.global_batch, base_batch=base, noise_scale=choice.noise_scale)
        least = bound = "" if choice.sure else "at least "
        if bound and choice.layout.global_batch < base:  # where more noise makes a sample worth less
            bound = "at most "
        said.append(
            f"The noise scale is {least}{choice.noise_scale:,.0f} samples, so a sample in a batch of "
            f"{choice.layout.global_batch} is worth {bound}{worth:.0%} of one in the base batch of {base}."
        )
    rate = f"{choice.layout.global_batch / choice.step_s:,.0f} samples/s (± {choice.error:.0%})"
    said.append(f"With {_words(choice.layout)} a step takes {_seconds(choice.step_s)}, {rate}.")
    if choice.current_step_s is not None and choice.current_goodput:
        ratio = choice.goodput / choice.current_goodput
        stands = f"a batch of {seen.batch}"
        if seen.micro_batch is not None:
            stands = _words(Layout(global_batch=seen.batch, micro_batch=seen.micro_batch))
        said.append(
            f"That is {ratio:.2f} times the goodput of {stands}, which now takes {_seconds(choice.current_step_s)}."
        )
        if choice.hope:
            said.append(f"It is tried because it may be up to {choice.hope:.0%} better than that.")
        elif ratio <= 1:
            said.append("It is chosen for its fewer steps.")
    return said


def _doubt(seen: Observation) -> str:
    if seen.noise is None:
        return "The gradient noise was not measured yet"
    low, high = seen.noise.interval
    return f"The noise scale is not sure enough to act on (between {low:,.0f} and {high:,.0f} samples)"


def _words(layout: Layout) -> str:
    return f"a batch of {layout.global_batch} in micro-batches of {layout.micro_batch}"


def _seconds(time: float) -> str:
    return f"{time:.2f} s" if time >= 1 else f"{time * 1000:.1f} ms"


def _inputs(choice: Choice, seen: Observation) -> dict[str, float]:
    figures = {
        "noise_scale": choice.noise_scale,
        "replicas": seen.replicas,
        "nodes": seen.nodes,
        "step_s": choice.step_s,
        "error": choice.error,
        "current_step_s": choice.current_step_s,
        "best_goodput": choice.best_goodput,
        "needed_gain": choice.needed,
        "configurations": len(seen.profile),
    }
    return {name: float(value) for name, value in figures.items() if value is not None}
