"""Write docs/images/concepts/*.svg: one picture for each concept page, computed by the library itself.

python scripts/concept_pictures.py

Each picture has its own background, light or dark by the reader's preference, so it can be read on any page.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import swell
from swell.core.goodput import goodput
from swell.core.moments import efficiency
from swell.core.order import Shuffled
from swell.core.protocols import Policy, Rule
from swell.core.types import Moments, NoiseEstimate, Observation
from swell.rules import MeanGain

FOLDER = Path(__file__).parents[1] / "docs" / "images" / "concepts"
WIDTH = 760
STYLE = """
text{font:13px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;fill:#1b2327}
.paper{fill:#fff;stroke:#d8dfe3}.ring{fill:none;stroke:#1b2327;stroke-width:2}.none{fill:none;stroke:#9aa7ae}
.soft{fill:#5a6870;font-size:12px}.bold{font-weight:600}.small{font-size:10px}.axis{stroke:#9aa7ae}.grid{stroke:#e3e8eb}
.a{--c:#00796b}.b{--c:#c2571a}.c{--c:#3f51b5}.d{--c:#8e6a00}.e{--c:#5a6870}.x{--c:#c62828}
.ink,.fill{fill:var(--c)}.pale{fill:var(--c);fill-opacity:.22;stroke:var(--c)}.thin{fill:none;stroke:var(--c)}
.line{fill:none;stroke:var(--c);stroke-width:2}.dash{stroke-dasharray:5 4}
@media(prefers-color-scheme:dark){
text{fill:#e6edf0}.paper{fill:#182024;stroke:#2f3b41}.ring{stroke:#fff}.soft{fill:#9db0b8}.axis{stroke:#6b7c84}
.grid{stroke:#2a363c}.ink{fill:var(--c)}
.a{--c:#4db6ac}.b{--c:#ffa26b}.c{--c:#9fa8da}.d{--c:#e0c060}.e{--c:#9db0b8}.x{--c:#ef9a9a}
}
"""


@dataclass
class Picture:
    """An SVG under way; colours are classes, so that one file serves light and dark."""

    title: str
    height: int
    parts: list[str] = field(default_factory=list)

    def text(self, x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> None:
        self.parts.append(f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>')

    def box(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        size = f'width="{width:.1f}" height="{height:.1f}"'
        self.parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" {size} rx="2" class="{kind}"/>')

    def line(self, points: Sequence[tuple[float, float]], kind: str) -> None:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self.parts.append(f'<polyline points="{path}" class="{kind}"/>')

    def dot(self, x: float, y: float, kind: str, radius: float = 4) -> None:
        self.parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" class="{kind}"/>')

    def svg(self) -> str:
        size = f'viewBox="0 0 {WIDTH} {self.height}" width="{WIDTH}" height="{self.height}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><title>{escape(self.title)}</title>'
            f"<style>{STYLE.strip()}</style>\n"
            f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{self.height - 1}" rx="8" class="paper"/>\n'
            + "\n".join(self.parts)
            + "\n</svg>\n"
        )


@dataclass
class Panel:
    """Axes within a picture; scales are logarithmic where asked for."""

    picture: Picture
    left: float
    top: float
    width: float
    height: float
    x: tuple[float, float]
    y: tuple[float, float]
    log_x: bool = False
    log_y: bool = False

    def at(self, x: float, y: float) -> tuple[float, float]:
        across = _part(x, self.x, self.log_x)
        up = _part(y, self.y, self.log_y)
        return self.left + self.width * across, self.top + self.height * (1 - up)

    def axes(self, x_ticks: Sequence[float], y_ticks: Sequence[float], *, x_label: str, y_label: str) -> None:
        bottom, right = self.top + self.height, self.left + self.width
        for tick in x_ticks:
            x, _ = self.at(tick, self.y[0])
            self.picture.line([(x, self.top), (x, bottom)], "grid")
            self.picture.text(x, bottom + 16, _number(tick), "soft", "middle")
        for tick in y_ticks:
            _, y = self.at(self.x[0], tick)
            self.picture.line([(self.left, y), (right, y)], "grid")
            self.picture.text(self.left - 6, y + 4, _number(tick), "soft", "end")
        self.picture.line([(self.left, self.top), (self.left, bottom), (right, bottom)], "none")
        self.picture.text(right, bottom + 32, x_label, "soft", "end")
        self.picture.text(self.left, self.top - 8, y_label, "soft")

    def curve(self, function: Callable[[float], float], kind: str, *, steps: int = 80) -> None:
        low, high = self.x
        places = [
            low * (high / low) ** (i / steps) if self.log_x else low + (high - low) * i / steps
            for i in range(steps + 1)
        ]
        self.picture.line([self.at(place, function(place)) for place in places], kind)


def _part(value: float, bounds: tuple[float, float], log: bool) -> float:
    low, high = bounds
    if log:
        return math.log(value / low) / math.log(high / low)
    return (value - low) / (high - low)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def ledger() -> Picture:
    """The order of an epoch, and steps of different worlds that use it up."""
    picture = Picture("One order, used up step by step: each sample once, whatever the workers do", 262)
    count, cell, left, top = 40, 17.6, 28, 66
    order = Shuffled(count, seed=0, epoch=0).indices(0, count).tolist()
    picture.text(left, 28, "The order of an epoch depends on seed and epoch alone", "bold")
    picture.text(left, 48, "Each box is a sample, in the order in which the run uses them", "soft")
    steps = [(0, 8, 1, "a"), (8, 20, 3, "b"), (20, 32, 2, "c")]
    colours = {place: colour for start, stop, _, colour in steps for place in range(start, stop)}
    for place, sample in enumerate(order):
        kind = f"{colours[place]} pale" if place in colours else "none"
        picture.box(left + cell * place, top, cell - 2, 24, kind)
        picture.text(left + cell * place + cell / 2 - 1, top + 16, str(sample), "small", "middle")

    def span(start: int, stop: int, y: float, workers: int, kind: str, label: str) -> None:
        plan = swell.plan(stop - start, workers)
        x = left + cell * start
        for size in plan.share_sizes():
            picture.box(x, y, cell * size - 2, 16, kind)
            x += cell * size
        picture.text(left + cell * start, y + 32, label, "soft")

    span(0, 8, 104, 1, "a fill", "step 1: one worker")
    span(8, 20, 104, 3, "b fill", "step 2: three workers")
    span(20, 32, 104, 3, "x thin dash", "step 3: one is lost, none counts")
    span(20, 32, 158, 2, "c fill", "step 3 again: two workers")
    x = left + cell * 32 - 1
    picture.line([(x, top - 6), (x, 218)], "a line")
    picture.text(x + 8, 214, "committed up to here", "a ink")
    picture.text(left, 246, "A checkpoint holds three numbers of this: seed, epoch, and how far it is.", "soft")
    return picture


def plan() -> Picture:
    """One global batch on one to four replicas."""
    picture = Picture("A global batch of 256 on 1 to 4 replicas, at most 64 samples at once", 322)
    picture.text(28, 28, "A global batch of 256 on 1 to 4 replicas, at most 64 samples at once", "bold")
    picture.text(28, 48, "Each bar is a micro-batch; its gradient counts by its part of the 256", "soft")
    y, per_sample = 66.0, 1.55
    for replicas, kind in zip(range(1, 5), "abcd", strict=True):
        layout = swell.plan(256, replicas, max_micro=64)
        picture.text(28, y + 13, f"{replicas} replica{'s' if replicas > 1 else ''}")
        times = f"{layout.micro_batch} × {layout.accumulation} × {replicas}"
        even = layout.micro_batch * layout.accumulation * replicas == 256
        picture.text(WIDTH - 28, y + 13, times if even else f"at most {times}", "soft", "end")
        for share in layout.shares:
            x = 120.0
            for micro in share:
                picture.box(x, y, per_sample * micro.size - 3, 17, f"{kind} pale")
                picture.text(x + per_sample * micro.size / 2, y + 13, str(micro.size), "small", "middle")
                x += per_sample * micro.size
            y += 21
        y += 12
    return picture


def moments() -> Picture:
    """Gradients of small batches around the true one, and what their norms say."""
    picture = Picture("Signal and noise: how gradients of small and large batches scatter", 292)
    draw = random.Random(5)
    picture.text(28, 28, "Gradients scatter around the true one, less so for larger batches", "bold")
    for number, (batch, kind) in enumerate([(16, "b"), (256, "a")]):
        middle_x, middle_y = 60 + 180 * number, 180
        for _ in range(24):
            x, y = (draw.gauss(0, 1) * 108 / math.sqrt(batch) for _ in range(2))
            tip = (middle_x + 90 + x, middle_y - 50 + y)
            picture.line([(middle_x, middle_y), tip], f"{kind} thin")
            picture.dot(*tip, f"{kind} fill", 2)
        picture.dot(middle_x + 90, middle_y - 50, "ring", 6)
        picture.text(middle_x - 20, 250, f"batches of {batch}", f"{kind} ink")
    picture.text(28, 274, "ring: the true gradient", "soft")
    signal, noise = 1.0, 64.0
    panel = Panel(picture, 450, 66, 280, 168, (8, 1024), (0.05, 12), log_x=True, log_y=True)
    panel.axes([8, 64, 512], [0.1, 1, 10], x_label="batch, in samples", y_label="squared norm of a batch's gradient")
    panel.curve(lambda batch: signal + noise / batch, "e line")
    panel.curve(lambda batch: noise / batch, "b line dash")
    panel.curve(lambda _: signal, "a line dash")
    x, y = panel.at(noise / signal, signal)
    picture.dot(x, y, "e fill")
    picture.text(x - 6, y + 20, "noise scale", "soft", "end")
    picture.text(*_shift(panel.at(300, 1), 8, -6), "signal", "a ink")
    picture.text(*_shift(panel.at(150, 0.2), 0, 14), "noise / batch", "b ink", "end")
    picture.text(*_shift(panel.at(12, 7), 12, -2), "sum: what is measured", "soft")
    return picture


def _shift(point: tuple[float, float], x: float, y: float) -> tuple[float, float]:
    return point[0] + x, point[1] + y


def rules() -> Picture:
    """Factors of the learning rate against the scale, at one noise scale."""
    picture = Picture("The factor of the learning rate by rule and batch", 330)
    picture.text(28, 28, "How the learning rate follows the batch", "bold")
    picture.text(
        28, 48, "Where the noise scale is eight base batches. Back at the base batch, every factor is 1", "soft"
    )
    panel = Panel(picture, 70, 84, 480, 196, (1, 64), (0.8, 64), log_x=True, log_y=True)
    panel.axes([1, 2, 4, 8, 16, 32, 64], [1, 4, 16, 64], x_label="batch / base batch", y_label="factor")
    base, ends = 32, []
    moments = Moments(signal=1.0, noise=8.0 * base)
    named = [
        ("linear", swell.Linear(), "b"),
        ("mean-gain: auto, for SGD", MeanGain(), "a"),
        ("root: auto, for Adam", swell.Root(), "c"),
        ("adascale", swell.AdaScale(), "d"),
        ("constant", swell.Constant(), "e"),
    ]
    for name, rule, kind in named:

        def factor(scale: float, rule: Rule = rule) -> float:
            return rule.factors(swell.ScaleState(scale=scale, base_batch=base, moments=moments)).lr

        panel.curve(factor, f"{kind} line")
        ends.append((panel.at(64, factor(64.0))[1], name, kind))
    low = -math.inf
    for y, name, kind in sorted(ends):
        low = max(y + 4, low + 17)  # labels do not cover one another
        picture.text(560, low, name, f"{kind} ink")
    return picture


def policies() -> Picture:
    """What six policies choose over one run."""
    picture = Picture("The batch over a run, by policy", 352)
    picture.text(28, 28, "The batch over one run, by policy", "bold")
    picture.text(
        28, 48, "Grey: the noise scale, which grows during this run; the learning rate halves three times", "soft"
    )
    halves = swell.Schedule([(0, 64), (0.5, 256)], unit="fraction")
    shown: list[tuple[str, Policy, str]] = [
        ("Fixed(64)", swell.Fixed(64), "e"),
        ("Schedule: 64, then 256", halves, "c"),
        ("Ramp: to 1,024 by half time", swell.Ramp(64, 1024, over=0.5, unit="fraction"), "c"),
        ("NoiseScale(64, max=512)", swell.NoiseScale(64, max=512), "a"),
        ("Seesaw(64, max=1024)", swell.Seesaw(64, max=1024), "b"),
        ("LateSwitch(64, to=512, at=0.7)", swell.LateSwitch(64, to=512, at=0.7), "b"),
    ]
    for number, (name, policy, kind) in enumerate(shown):
        left, top = 62 + 240 * (number % 3), 88 + 134 * (number // 3)
        panel = Panel(picture, left, top, 176, 84, (0, 1), (32, 2048), log_y=True)
        panel.axes([0, 1], [64, 1024], x_label="", y_label="")
        panel.curve(_noise_scale, "e thin dash", steps=20)
        points, batch, since, total = [], policy.base, 0, 1_000_000
        for part in range(101):
            seen = _seen(part / 100, batch=batch, since=since, total=total, base=policy.base)
            chosen = policy.batch(seen)
            if chosen != batch:
                points.append(panel.at(part / 100, batch))
                batch, since = chosen, seen.samples
            points.append(panel.at(part / 100, batch))
        picture.line(points, f"{kind} line")
        picture.text(left - 34, top - 10, name, f"{kind} ink")
    return picture


def _noise_scale(part: float) -> float:
    return 48 * 40**part


def _seen(part: float, *, batch: int, since: int, total: int, base: int) -> Observation:
    noise = _noise_scale(part)
    moments = Moments(signal=1.0, noise=noise)
    return Observation(
        step=int(1000 * part),
        samples=int(total * part),
        epoch=0,
        epoch_samples=int(total * part),
        epoch_size=total,
        total_samples=total,
        progress=1000 * part,
        base_batch=base,
        batch=batch,
        batch_since=since,
        replicas=1,
        noise=NoiseEstimate(total=moments, groups=(moments,), interval=(noise / 1.3, noise * 1.3), observations=100),
        lr_height=0.5 ** min(3, int(4 * part)),
    )


def goodputs() -> Picture:
    """Speed, worth of a sample, and their product."""
    picture = Picture("Goodput: speed times the worth of a sample", 332)
    picture.text(28, 28, "Goodput is speed times what a sample is worth", "bold")
    base = 64

    def seconds(batch: float) -> float:
        return 0.02 + batch / 12_800

    left = Panel(picture, 62, 84, 290, 176, (64, 8192), (0, 1.2), log_x=True)
    left.axes([64, 512, 4096], [0, 0.5, 1], x_label="batch, in samples", y_label="part of the highest")
    phi, sizes = 1000.0, [64 * 2 ** (i / 16) for i in range(113)]
    fastest = max(size / seconds(size) for size in sizes)
    most = max(float(goodput(size, seconds(size), base, phi)) for size in sizes)
    left.curve(lambda size: size / seconds(size) / fastest, "c line")
    left.curve(lambda size: efficiency(size, base_batch=base, noise_scale=phi), "b line")
    left.curve(lambda size: float(goodput(size, seconds(size), base, phi)) / most, "a line")
    picture.text(*_shift(left.at(8192, 1), 0, -2), "samples a second", "c ink", "end")
    picture.text(*_shift(left.at(3000, 0.25), -14, 20), "worth of a sample", "b ink", "end")
    picture.text(*_shift(left.at(512, 1), 0, -8), "goodput", "a ink", "middle")
    right = Panel(picture, 440, 84, 290, 176, (64, 8192), (0, 10_500), log_x=True)
    right.axes([64, 512, 4096], [0, 4000, 8000], x_label="batch, in samples", y_label="goodput at three noise scales")
    for phi, kind in ((200.0, "d"), (1000.0, "a"), (5000.0, "c")):

        def value(size: float, phi: float = phi) -> float:
            return float(goodput(size, seconds(size), base, phi))

        right.curve(value, f"{kind} line")
        top = max(sizes, key=value)
        picture.dot(*right.at(top, value(top)), f"{kind} fill")
        picture.text(*_shift(right.at(top, value(top)), 0, -9), f"{phi:,.0f}", f"{kind} ink", "middle")
    picture.text(
        28, 318, "The best batch grows with the noise scale, which grows during a run: so the batch does too.", "soft"
    )
    return picture


def elasticity() -> Picture:
    """Workers that join, leave and are killed, and the plan in each world."""
    picture = Picture("Workers join, leave and die; the batch stays, its layout changes", 332)
    picture.text(28, 28, "Workers come, go and die. The batch stays what it is; its layout changes", "bold")
    left, right, top, lane = 120.0, WIDTH - 28.0, 62.0, 34.0

    def at(time: float) -> float:
        return left + (right - left) * time / 12

    lives = [
        (0, [(0.0, 12.0, "a")]),
        (1, [(0.0, 6.0, "b"), (8.2, 12.0, "a")]),
        (2, [(3.0, 12.0, "a")]),
        (3, [(3.0, 10.2, "c")]),
    ]
    for number, spans in lives:
        y = top + lane * number
        picture.text(28, y + 17, f"worker {number}")
        for start, stop, kind in spans:
            picture.box(at(start), y, at(stop) - at(start) - 3, 24, f"{kind} pale")
    picture.text(at(6.0) - 12, top + lane + 17, "✕ killed", "x ink", "end")
    picture.text(at(8.2) + 8, top + lane + 17, "is replaced", "soft")
    picture.text(at(3.0) + 8, top + 3 * lane + 17, "two join", "soft")
    picture.text(at(10.2) - 12, top + 3 * lane + 17, "leaves on notice", "c ink", "end")
    bottom = top + 4 * lane
    for time in (3.0, 6.0, 8.2, 10.2):
        picture.line([(at(time) - 1.5, top - 8), (at(time) - 1.5, bottom + 66)], "axis dash")
    picture.text(28, bottom + 26, "layout")
    picture.text(28, bottom + 56, "batch")
    for start, stop, replicas in [(0, 3, 2), (3, 6, 4), (6, 8.2, 3), (8.2, 10.2, 4), (10.2, 12, 3)]:
        layout = swell.plan(256, replicas, max_micro=64)
        middle = (at(start) + at(stop)) / 2
        times = f"{layout.micro_batch} × {layout.accumulation} × {replicas}"
        picture.text(middle, bottom + 26, times, "soft", "middle")
    picture.box(left, bottom + 42, right - left - 3, 20, "e pale")
    picture.text((at(3) + at(6)) / 2, bottom + 56, "256 in every step", "soft", "middle")
    picture.text(
        28,
        bottom + 96,
        "A killed worker costs the step under way; those who stay keep their processes and memory.",
        "soft",
    )
    picture.text(
        28,
        bottom + 114,
        "Layout: largest micro-batch × accumulation × workers; shares that do not divide are uneven.",
        "soft",
    )
    return picture


PICTURES: dict[str, Callable[[], Picture]] = {
    "ledger": ledger,
    "plan": plan,
    "moments": moments,
    "rules": rules,
    "policies": policies,
    "goodput": goodputs,
    "elasticity": elasticity,
}


def files() -> dict[Path, str]:
    """What belongs into each file."""
    return {FOLDER / f"{name}.svg": draw().svg() for name, draw in PICTURES.items()}


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, text in files().items():
        path.write_text(text)
