"""Which rule suits which optimizer, by the optimizer's class name, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from swell.core.protocols import Rule
from swell.errors import ConfigError
from swell.rules.adam_mean_gain import AdamMeanGain
from swell.rules.adam_sde import AdamSDE
from swell.rules.adamscale import AdamScale
from swell.rules.adascale import AdaScale
from swell.rules.constant import Constant
from swell.rules.ema import KeepAverageTime
from swell.rules.legw import LEGW
from swell.rules.linear import Linear
from swell.rules.mean_gain import MeanGain
from swell.rules.root import Root
from swell.rules.weight_decay import KeepDecayTime


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The properties of an optimizer, the rule that follows from them, and why."""

    rule: Rule
    reason: str
    adaptive: bool = True  # its steps do not shrink with the gradient
    own_step: bool = False  # it finds its step length itself
    second_moment: bool = False  # an elementwise one, so preconditioned moments can be measured
    betas: bool = False
    direct_decay: bool = False  # weight decay is applied as lr * decay, not through a second moment
    dual_norm: Literal["absolute", "nuclear"] | None = None  # of steps by signs, or by orthogonalised matrices


_NOISE_AWARE = AdamMeanGain()
_PLAIN = AdamMeanGain(metric="plain")
_FIXED_SIZE = AdamScale(metric="plain")  # with the mean gain, Muon's loss ended one per cent above the base runs'
_ADAM = "steps are normalised by the second moment: root of the scale, and a worth by the gain in that metric"
_DECAY = "; its decoupled weight decay keeps its time scale in samples"
_LIKE_ADAM = (
    ", so there is no elementwise second moment to measure by: root of the scale, and a worth by the plain gain"
)
_NO_LAW = (
    " fixed size, so nothing in them shrinks with the noise: the root of the plain gain, and a worth by that gain alone"
)

CHOICES: dict[str, Choice] = {
    "SGD": Choice(
        rule=MeanGain(),
        reason="steps are proportional to the gradient: the mean of the scale and the gain",
        adaptive=False,
        direct_decay=True,
    ),
    "ASGD": Choice(
        rule=MeanGain(),
        reason="SGD with an average of its iterates: the mean of the scale and the gain",
        adaptive=False,
        direct_decay=True,
    ),
    "Adam": Choice(rule=_NOISE_AWARE, reason=_ADAM, second_moment=True, betas=True),
    "NAdam": Choice(rule=_NOISE_AWARE, reason=_ADAM, second_moment=True, betas=True),
    "RAdam": Choice(rule=_NOISE_AWARE, reason=_ADAM, second_moment=True, betas=True),
    "AdamW": Choice(
        rule=KeepDecayTime(_NOISE_AWARE), reason=_ADAM + _DECAY, second_moment=True, betas=True, direct_decay=True
    ),
    "FusedAdam": Choice(
        rule=KeepDecayTime(_NOISE_AWARE), reason=_ADAM + _DECAY, second_moment=True, betas=True, direct_decay=True
    ),
    "RMSprop": Choice(rule=_NOISE_AWARE, reason=_ADAM, second_moment=True),
    "Adadelta": Choice(rule=_NOISE_AWARE, reason=_ADAM, second_moment=True),
    "Adagrad": Choice(
        rule=_NOISE_AWARE,
        reason=_ADAM + "; its sum of squares remembers every batch size so far, so it follows a change slowly",
        second_moment=True,
    ),
    "Adamax": Choice(rule=_PLAIN, reason="normalises by an infinity norm" + _LIKE_ADAM, betas=True),
    "SparseAdam": Choice(rule=_PLAIN, reason="takes sparse gradients" + _LIKE_ADAM, betas=True),
    "Adafactor": Choice(
        rule=KeepDecayTime(_PLAIN), reason="keeps a factored second moment" + _LIKE_ADAM + _DECAY, direct_decay=True
    ),
    "Muon": Choice(
        rule=KeepDecayTime(_FIXED_SIZE),
        reason="orthogonalised steps have a" + _NO_LAW + _DECAY,
        direct_decay=True,
        dual_norm="nuclear",
    ),
    "Lion": Choice(
        rule=KeepDecayTime(_PLAIN),
        reason="steps by signs" + _LIKE_ADAM + _DECAY,
        betas=True,
        direct_decay=True,
        dual_norm="absolute",
    ),
    "Rprop": Choice(
        rule=Constant(),
        reason="reads its learning rate at its first step only, so a factor has no effect",
        own_step=True,
    ),
    "LBFGS": Choice(
        rule=Constant(), reason="finds its step length from curvature, which a factor would spoil", own_step=True
    ),
}

_SIGNS = Choice(rule=_PLAIN, reason="steps by signs" + _LIKE_ADAM, dual_norm="absolute")

# Parts of the names of third-party optimizers, the most specific first. Their second moments may be quantised or
# blockwise, so nothing is assumed about them.
_PARTS: tuple[tuple[str, Choice], ...] = (
    ("lbfgs", CHOICES["LBFGS"]),
    ("muon", CHOICES["Muon"]),
    ("lion", CHOICES["Lion"]),
    ("signum", _SIGNS),
    ("signsgd", _SIGNS),
    (
        "adamw",
        Choice(
            rule=KeepDecayTime(_PLAIN),
            reason="of AdamW's kind, perhaps quantised or blockwise" + _LIKE_ADAM + _DECAY,
            direct_decay=True,
        ),
    ),
    ("adam", Choice(rule=_PLAIN, reason="of Adam's kind, perhaps quantised or blockwise" + _LIKE_ADAM)),
    ("sgd", CHOICES["SGD"]),
)
_OURS = (Linear, Root, LEGW, MeanGain, AdamMeanGain, AdaScale, AdamScale, AdamSDE, Constant)
_UNKNOWN = Choice(rule=_PLAIN, reason="unknown: the root of the scale is never bolder than either family's rule")


def choice(optimizer_name: str) -> Choice:
    """What ``auto`` knows of an optimizer: the rule and the reason for it.

    >>> choice("LBFGS").reason
    'finds its step length from curvature, which a factor would spoil'
    """
    return _find(optimizer_name) or _UNKNOWN


def auto(optimizer_name: str) -> Rule:
    """The rule for an optimizer of this class name, upper or lower case.

    SGD gets :class:`MeanGain`. Adam and other optimizers with an elementwise second moment get :class:`AdamMeanGain`,
    not :class:`AdamSDE`, because it measures what a step is worth; with decoupled weight decay it is inside
    :class:`KeepDecayTime`. Optimizers that find their step themselves get :class:`Constant`. ``CHOICES`` lists all with
    reasons. Third-party names are matched by their parts ("AdamW8bit"). An unknown name is taken for an adaptive
    optimizer, and :func:`suits` says so.

    >>> auto("SGD")
    MeanGain()
    >>> auto("AdamW")
    KeepDecayTime(rule=AdamMeanGain(metric='preconditioned', betas='keep', second_moment='follow'))
    """
    return choice(optimizer_name).rule


def auto_by_gain(optimizer_name: str) -> Rule:
    """Like :func:`auto`, with AdaScale's own gain: the learning rate and the progress of AdaScale and of Pollux.

    >>> auto_by_gain("SGD"), auto_by_gain("AdamW")
    (AdaScale(), KeepDecayTime(rule=AdamScale(metric='preconditioned')))
    """
    return _by_gain(auto(optimizer_name))


def _by_gain(rule: Rule) -> Rule:
    if isinstance(rule, KeepDecayTime):
        return KeepDecayTime(_by_gain(rule.rule))
    if isinstance(rule, AdamMeanGain):
        return AdamScale(metric=rule.metric)
    return AdaScale() if isinstance(rule, MeanGain) else rule


def suits(rule: Rule, optimizer_name: str) -> str | None:
    """Why a rule does not suit an optimizer, and what to use instead; None if it does or is the user's own.

    >>> suits(Linear(), "SGD") is None
    True
    >>> print(suits(AdamScale(), "SGD"))
    AdamScale measures by a second moment and SGD keeps none: ... Use MeanGain().
    """
    known = _find(optimizer_name)
    if known is None:
        if rule != _UNKNOWN.rule:
            return None
        return (
            f"{optimizer_name} is not an optimizer with a known rule. It is taken for an adaptive one and gets "
            f"{_UNKNOWN.rule}, at most the root of the scale. Choose the rule yourself if you know better."
        )
    inner, keeps_decay = _unwrapped(rule)
    name, better = type(inner).__name__, f"Use {known.rule}."
    if not isinstance(inner, _OURS):
        return None
    if known.own_step and not isinstance(inner, Constant):
        return f"{name} changes the learning rate, but {optimizer_name} {known.reason}. {better}"
    if known.adaptive and not known.own_step and isinstance(inner, (Linear, AdaScale, MeanGain)):
        return (
            f"{name} raises the learning rate up to the scale, for steps that shrink with the gradient. Those of "
            f"{optimizer_name} do not, so they get too large. {better}"
        )
    if isinstance(inner, AdamScale) and inner.metric == "dual" and known.dual_norm is None:
        return (
            f"{name} measures by a dual norm here, that of steps by signs or by orthogonalised matrices, and those of "
            f"{optimizer_name} are neither: the noise would never be known. {better}"
        )
    by_metric = isinstance(inner, (AdamScale, AdamMeanGain)) and inner.metric == "preconditioned"
    if by_metric and not known.second_moment:
        return (
            f"{name} measures by a second moment and {optimizer_name} keeps none: the noise would never be known. "
            f"{better}"
        )
    if isinstance(inner, AdamSDE) and not known.betas:
        return (
            f"AdamSDE changes betas, and {optimizer_name} has none: only its learning rate (and eps) would follow the "
            f"batch. {better}"
        )
    if keeps_decay and not known.direct_decay and not known.own_step:
        return (
            f"KeepDecayTime is for weight decay that is applied to the weights as lr * decay. That of {optimizer_name} "
            f"passes through its second moment (unless built with decoupled_weight_decay=True). Use {inner} alone."
        )
    return None


def dual_norm(optimizer_name: str) -> Literal["absolute", "nuclear"]:
    """The dual norm of an optimizer's steps: the sum of absolute values for signs, the nuclear norm for Muon's.

    >>> dual_norm("Muon"), dual_norm("DistributedLion")
    ('nuclear', 'absolute')
    """
    known = _find(optimizer_name)
    if known is None or known.dual_norm is None:
        better = _UNKNOWN.rule if known is None else known.rule
        raise ConfigError(
            f"the rule measures by a dual norm and the optimizer is {optimizer_name}; expected one whose class name "
            "contains 'muon', 'lion', 'signum' or 'signsgd', because only steps by signs or by orthogonalised matrices "
            f"have such a norm. Use {better} or rule='auto' for this optimizer."
        )
    return known.dual_norm


def _find(optimizer_name: str) -> Choice | None:
    lower = optimizer_name.lower()
    exact = (known for name, known in CHOICES.items() if name.lower() == lower)
    by_part = (known for part, known in _PARTS if part in lower)
    return next(exact, None) or next(by_part, None)


def _unwrapped(rule: Rule) -> tuple[Rule, bool]:
    """The rule inside its combinators, and whether one of them keeps the time scale of weight decay."""
    keeps_decay = False
    while isinstance(rule, (KeepDecayTime, KeepAverageTime)):
        keeps_decay = keeps_decay or isinstance(rule, KeepDecayTime)
        rule = rule.rule
    return rule, keeps_decay
