"""Verdicts in one sentence with numbers. Tenants' names stand in them as they are: whoever prints them escapes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from fairreplay.causes.demand import Burst
from fairreplay.causes.in_force import Listed, less_kv, less_speed
from fairreplay.causes.signatures import Evidence, is_skewed, weight_skews
from fairreplay.causes.verdict import UNEXPLAINED, Inferred, Recommendation, Signature

NAME_MAX = 48
NAMED_MAX = 2
"""Tenants that a sentence names; the others are counted."""


def reason(
    cause: str,
    evidence: Evidence,
    found: Mapping[str, Signature],
    inferred: Inferred | None,
    metric: str,
    real: float | None,
    without: float | None,
    reproduced: bool,
) -> str:
    """What happened, and what would have been without it.

    Args:
        metric: whose mean over the episode is told: ``real`` in the baseline replay, ``without`` without the cause.
    """
    what = WHAT[cause](evidence, found, inferred) if cause in WHAT else "none of the causes that were tried explains it"
    if cause == UNEXPLAINED:
        return _capital(what) + (
            "." if reproduced else ": the sandbox does not reproduce it, and the log shows no cause."
        )
    if not reproduced or real is None or without is None:
        return _capital(what) + "; the sandbox does not reproduce the episode, so this rests on the log alone."
    return _capital(f"{what}; without it {metric.upper()} would have been {without:.2f} instead of {real:.2f}.")


def burst(evidence: Evidence, _found: Mapping[str, Signature], _inferred: Inferred | None) -> str:
    by_ratio = sorted(evidence.bursts, key=lambda one: (one.types is not None, -one.ratio, one.tenant))
    first: dict[str, Burst] = {}
    for one in by_ratio:
        first.setdefault(one.tenant, one)  # the tenant as a whole, if it bursts as a whole
    if not first:
        return "some tenants sent more than usual"
    windows = [window for one in evidence.bursts for window in one.windows]
    span = f"from {_clock(evidence.levels.starts[min(windows)])} to {_clock(evidence.levels.ends[max(windows)])}"
    said = []
    for tenant, one in list(first.items())[:NAMED_MAX]:
        kinds = "" if one.types is None else f" of type {', '.join(map(_name, one.types))}"
        said.append(f"tenant {_name(tenant)} sent {one.ratio:.1f}x its usual requests{kinds}")
    more = len(first) - NAMED_MAX
    if more > 0:
        said.append(f"{more} more tenant{'s' if more > 1 else ''} at least {min(o.ratio for o in first.values()):.1f}x")
    return f"{' and '.join(said) if len(said) < 3 else ', '.join(said[:-1]) + ' and ' + said[-1]} {span}"


def preemption_thrash(evidence: Evidence, found: Mapping[str, Signature], inferred: Inferred | None) -> str:
    cuts = [change for change in evidence.changes if less_kv(change)]
    share = found["preemption_thrash"].number
    so = "" if share is None else f", and {share:.0%} of the requests were preempted twice or more"
    if cuts:
        return f"the change at {_clock(cuts[0].at)} cut {_keys(cuts[0], less_kv(cuts[0]))}{so}"
    if inferred is not None and inferred.what == "kv":
        return (
            f"only about {inferred.factor:.0%} of the KV cache was there {_span(inferred)} (inferred, not listed){so}"
        )
    if share is None:
        return "work was evicted and done again (suspected: the log has no preemption counts)"
    return f"{share:.1%} of the requests were preempted twice or more: work was evicted and done again"


def type_starvation(evidence: Evidence, found: Mapping[str, Signature], _inferred: Inferred | None) -> str:
    one = found["type_starvation"]
    kinds = ", ".join(map(_name, one.types)) or "a type"
    rule = f"the policy {' and '.join(evidence.policies)}"
    moved = [change for change in evidence.changes if "policy" in change.keys]
    since = f", deployed at {_clock(moved[0].at)}," if moved else ""
    least = "" if one.number is None else f" (at worst {one.number:.2f} of the floor)"
    return f"{rule}{since} kept {kinds} waiting below the minimum share{least}"


def weight_skew(evidence: Evidence, found: Mapping[str, Signature], _inferred: Inferred | None) -> str:
    far = {name: skew for name, skew in weight_skews(evidence).items() if is_skewed(skew)}
    named = found["weight_skew"].tenants or tuple(sorted(far))
    worst = sorted(named, key=lambda name: (-max(far[name], 1 / far[name]), name))[:NAMED_MAX]
    said = " and ".join(f"tenant {_name(name)} weighs {far[name]:.2f}x its committed share" for name in worst)
    return f"weights in force are not the committed ones: {said}"


def capacity_shortfall(evidence: Evidence, _found: Mapping[str, Signature], inferred: Inferred | None) -> str:
    cuts = [change for change in evidence.changes if less_speed(change)]
    said = [f"the change at {_clock(change.at)} cut {_keys(change, less_speed(change))}" for change in cuts[:NAMED_MAX]]
    if inferred is not None and inferred.what == "speed":
        said.append(f"steps ran at about {inferred.factor:.0%} of their speed {_span(inferred)} (inferred, not listed)")
    if evidence.growth.found and evidence.growth.ratio is not None:
        windows, levels = evidence.growth.windows, evidence.levels
        said.append(
            f"the tenants together sent {evidence.growth.ratio:.1f}x their usual requests "
            f"from {_clock(levels.starts[windows[0]])} to {_clock(levels.ends[windows[-1]])}"
        )
    return " and ".join(said) or "the demand, not unusual, was more than the cluster serves in time"


def effect_of(one: Recommendation) -> str:
    """What a fix does to the deficit of the metrics that it is there for, and to all."""
    names = "/".join(name.upper() for name in one.metrics)
    said = f"{_removes(one.removed)} of the {names} deficit"
    if abs(one.removed_all - one.removed) >= 0.005:
        said += f", {_removes(one.removed_all)} of all"
    return said + ("; helps this episode and hurts the period" if one.hurts_period else "")


def _removes(part: float) -> str:
    return f"removes {part:.0%}" if part >= 0 else f"adds {-part:.0%}"


WHAT = {
    "burst": burst,
    "preemption_thrash": preemption_thrash,
    "type_starvation": type_starvation,
    "weight_skew": weight_skew,
    "capacity_shortfall": capacity_shortfall,
}


def _keys(change: Listed, keys: Sequence[str]) -> str:
    said = []
    for key in keys:
        before, after = getattr(change.before, key), getattr(change.after, key)
        said.append("the step times" if key == "step_time" else f"{key} from {before} to {after}")
    return " and ".join(said)


def _span(inferred: Inferred) -> str:
    start, end = (datetime.fromisoformat(at) for at in (inferred.start, inferred.end))
    return f"from {_clock(start)} to {_clock(end)}"


def _name(name: str) -> str:
    """A name as a sentence can hold it: an empty one in quotes, a long one cut in the middle."""
    if not name:
        return '""'
    return name if len(name) <= NAME_MAX else f"{name[: NAME_MAX // 2]}…{name[-NAME_MAX // 2 :]}"


def _clock(at: datetime) -> str:
    return f"{at:%H:%M}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
