"""What each release of vLLM decides otherwise: the defaults and rules behind ``[cluster] engine``.

The sources of six releases were read (0.11, 0.19, 0.23, 0.27, 0.30, 0.33); a release between two of them is taken to
decide as the older one, and ``unsettled`` names the rules by which the newer one differs. One rule is known better:
async scheduling became the default with 0.14 (release notes of v0.14.0).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any, Final

OLDEST: Final = 11
NEWEST: Final = 33
LATEST: Final = f"vllm-0.{NEWEST}"
_SPELLED: Final = re.compile(r"vllm-0\.(\d{1,3})(?:\.\d{1,3})?")


@dataclass(frozen=True)
class EngineRules:
    """How a release decides. The fields' order is that of ``RULES``."""

    full_isl: bool
    async_default: bool
    victim_tokens_return: bool
    watermark: bool
    uncached_first: bool
    lone_uncapped: bool
    self_preemption_goes_on: bool
    active_seqs: bool


RULES: Final = {
    "full_isl": "whole-prompt check at admission",
    "async_default": "async scheduling by default",
    "victim_tokens_return": "tokens of an already scheduled priority victim returned to the budget",
    "watermark": "watermark",
    "uncached_first": "uncached blocks freed to the front of the free list",
    "lone_uncapped": "no long-prefill cap for a lone request",
    "self_preemption_goes_on": "a priority request that preempts itself lets the pass go on",
    "active_seqs": "max_num_active_seqs",
}

_NOTHING: Final = dict.fromkeys(RULES, False)
_SINCE_19: Final = {"full_isl": True, "async_default": True, "victim_tokens_return": True}
_SINCE_27: Final = _SINCE_19 | {"watermark": True, "uncached_first": True}
READ: Final = {
    11: EngineRules(**_NOTHING),
    19: EngineRules(**(_NOTHING | _SINCE_19)),
    23: EngineRules(**(_NOTHING | _SINCE_19)),
    27: EngineRules(**(_NOTHING | _SINCE_27)),
    30: EngineRules(**(_NOTHING | _SINCE_27)),
    33: EngineRules(**dict.fromkeys(RULES, True)),
}
"""By minor version: the releases whose sources were read."""
ASYNC_SINCE: Final = 14


def minor(engine: str) -> int:
    """The minor version of ``vllm-0.N`` or ``vllm-0.N.P``.

    Raises:
        ValueError: another engine, or a release outside the range; names the range.
    """
    found = _SPELLED.fullmatch(engine)
    if found is None or not OLDEST <= int(found[1]) <= NEWEST:
        raise ValueError(f"unknown engine {engine!r}: write vllm-0.{OLDEST} to vllm-0.{NEWEST}")
    return int(found[1])


def rules(engine: str) -> EngineRules:
    """How ``engine`` decides: as the newest release that was read and is not newer than it."""
    version = minor(engine)
    known = READ[max(read for read in READ if read <= version)]
    values = {one.name: getattr(known, one.name) for one in fields(known)}
    return EngineRules(**(values | {"async_default": version >= ASYNC_SINCE}))


def unsettled(engine: str) -> tuple[str, ...]:
    """Rules by which the next release that was read differs, so that ``engine`` may have them already or not."""
    version = minor(engine)
    if version in READ:
        return ()
    own, after = rules(engine), READ[min(read for read in READ if read > version)]
    return tuple(said for name, said in RULES.items() if getattr(own, name) != getattr(after, name))


def defaults(engine: str) -> dict[str, Any]:
    """Settings of ``[cluster]`` that differ from the newest release's by default."""
    known = rules(engine)
    return {"scheduler_reserve_full_isl": known.full_isl, "async_scheduling": known.async_default}


def missing(engine: str, settings: dict[str, Any]) -> str | None:
    """The first of ``settings`` (those that are set) that ``engine`` does not have, said in words."""
    known = rules(engine)
    asked = {
        "watermark": ("watermark", bool(settings.get("watermark"))),
        "max_num_active_seqs": ("active_seqs", settings.get("max_num_active_seqs") is not None),
        "scheduler_reserve_full_isl": ("full_isl", bool(settings.get("scheduler_reserve_full_isl"))),
    }
    for key, (rule, is_set) in asked.items():
        if is_set and not getattr(known, rule):
            since = min(version for version, known_rules in READ.items() if getattr(known_rules, rule))
            return f"{key} does not exist in {engine} (known from vllm-0.{since} on)"
    return None
