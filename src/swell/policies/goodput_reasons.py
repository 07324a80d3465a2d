"""Why the goodput policy chose a layout, in sentences."""

from __future__ import annotations

from typing import Literal, NamedTuple

from swell.core.moments import efficiency
from swell.core.types import Decision, Layout, Observation

ChosenBy = Literal[
    "start",  # no step was measured yet
    "probe",  # another micro-batch is tried, to learn what a sample costs
    "reach",  # a larger batch is tried
    "unsure",  # the noise scale is unknown: only layouts of the present batch are compared
    "dwell",  # the batch changed a short time ago: likewise
    "weigh",  # all layouts are compared
]


class GoodputChoice(NamedTuple):
    """A layout, the rule that chose it, and the figures behind it."""

    rule: ChosenBy
    layout: Layout
    rejected: Layout | None = None  # the best other layout, if it was not good enough
    noise_scale: float | None = None
    sure: bool = True  # otherwise the noise scale is a lower bound, and the batch may only grow
    step_s: float | None = None  # predicted for the best layout, as are error and goodput
    error: float | None = None
    goodput: float | None = None
    best_goodput: float | None = None  # of any layout; a smaller (or larger) batch close to it is chosen
    current_step_s: float | None = None
    current_goodput: float | None = None
    needed: float = 0.0  # the part of the goodput that a change must add
    hope: float = 0.0  # the part by which it may be better than predicted, if that decided


def to_decision(choice: GoodputChoice, seen: Observation, *, base: int) -> Decision:
    """The choice as a record for the log: sentences for people, numbers for tools."""
    kept = choice.rejected is not None
    return Decision(
        chosen=choice.layout,
        current=_current(seen),
        reasons=tuple(_reasons(choice, seen, base)),
        goodput=choice.current_goodput if kept else choice.goodput,
        current_goodput=choice.current_goodput,
        inputs=_inputs(choice, seen),
    )


def _reasons(choice: GoodputChoice, seen: Observation, base: int) -> list[str]:
    sentences = []
    if seen.resized:
        nodes = f" on {seen.nodes} nodes" if seen.nodes > 1 else ""
        sentences.append(f"The world changed to {seen.replicas} replica{'s' if seen.replicas > 1 else ''}{nodes}.")
    if seen.max_micro is not None and choice.layout.micro_batch <= seen.max_micro:
        sentences.append(
            f"Micro-batches have at most {seen.max_micro} samples, because memory ran out at more or the run says so."
        )
    chosen = _words(choice.layout)
    if choice.rule == "start":
        return [*sentences, f"No step was measured yet: the run continues with {chosen}."]
    if choice.rule == "probe":
        known = " and ".join(str(size) for size in sorted({point.micro_batch for point in seen.profile}))
        why = f"Only micro-batches of {known} samples were measured, which does not show what a sample costs"
        return [*sentences, f"{why}: {chosen} is tried for a few steps."]
    if choice.rule == "reach":
        return [*sentences, f"No larger batch was measured in this world: {chosen} is tried for a few steps."]
    if choice.rule == "unsure":
        sentences.append(f"{_doubt(seen)}, so the global batch stays at {choice.layout.global_batch}.")
    elif choice.rule == "dwell":
        since = seen.samples - seen.batch_since
        sentences.append(
            f"The global batch changed {since} samples ago and stays at {choice.layout.global_batch} for now."
        )
    if choice.rejected is not None and choice.goodput is not None and choice.current_goodput:
        return sentences + _why_kept(choice, choice.rejected, choice.goodput / choice.current_goodput - 1, seen)
    if choice.step_s is not None and choice.goodput is not None:
        return sentences + _why_chosen(choice, choice.step_s, choice.goodput, seen, base)
    if choice.rule == "weigh":
        sentences.append(f"The bounds leave nothing to choose but {chosen}.")
    return sentences


def _why_kept(choice: GoodputChoice, rejected: Layout, promise: float, seen: Observation) -> list[str]:
    if promise > 1e-9:
        return [
            f"{_words(rejected).capitalize()} promises {promise:.1%} more goodput; a change must promise more than "
            f"{choice.needed:.1%}."
        ]
    if choice.rule != "weigh":
        return []
    if choice.sure:
        return [f"No other layout promises more than {_words(choice.layout)}."]
    return [f"{_doubt(seen)}, and at its lower end no larger batch promises more."]


def _why_chosen(choice: GoodputChoice, step_s: float, goodput: float, seen: Observation, base: int) -> list[str]:
    sentences, batch = [], choice.layout.global_batch
    if choice.noise_scale is not None and choice.rule == "weigh":
        worth = efficiency(batch, base_batch=base, noise_scale=choice.noise_scale, power=seen.worth_power)
        at_least = "" if choice.sure else "at least "
        bound = "at most " if at_least and batch < base else at_least  # below the base batch, noise lowers the worth
        sentences.append(
            f"The noise scale is {at_least}{choice.noise_scale:,.0f} samples, so a sample in a batch of {batch} is "
            f"worth {bound}{worth:.0%} of one in the base batch of {base}."
        )
    rate = f"{batch / step_s:,.0f} samples/s (± {choice.error:.0%})"
    sentences.append(f"With {_words(choice.layout)} a step takes {_seconds(step_s)}, {rate}.")
    if choice.current_step_s is not None and choice.current_goodput:
        ratio, current = goodput / choice.current_goodput, _current(seen)
        before = f"a batch of {seen.batch}" if current is None else _words(current)
        sentences.append(
            f"That is {ratio:.2f} times the goodput of {before}, which now takes {_seconds(choice.current_step_s)}."
        )
        if choice.hope:
            sentences.append(f"It is tried because it may be up to {choice.hope:.0%} better than that.")
        elif ratio <= 1:
            sentences.append(f"It is chosen for its fewer {'samples' if batch < seen.batch else 'steps'}.")
    return sentences


def _current(seen: Observation) -> Layout | None:
    return None if seen.micro_batch is None else Layout(global_batch=seen.batch, micro_batch=seen.micro_batch)


def _doubt(seen: Observation) -> str:
    if seen.noise is None:
        return "The gradient noise was not measured yet"
    low, high = seen.noise.interval
    return f"The noise scale is not sure enough to act on (between {low:,.0f} and {high:,.0f} samples)"


def _words(layout: Layout) -> str:
    return f"a batch of {layout.global_batch} in micro-batches of {layout.micro_batch}"


def _seconds(time: float) -> str:
    return f"{time:.2f} s" if time >= 1 else f"{time * 1000:.1f} ms"


def _inputs(choice: GoodputChoice, seen: Observation) -> dict[str, float]:
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
