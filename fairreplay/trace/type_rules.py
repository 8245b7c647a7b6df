"""``[[type_rules]]`` of the config: the first rule that holds names a request's type.

Two spellings of one meaning: ``named_type`` for a record on the strict path, ``type_expression`` for a frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import polars as pl

from fairreplay.config.model import TypeCondition, TypeRule
from fairreplay.errors import UsageError
from fairreplay.trace.schema import TYPE_ALIASES


def check_type_rules(rules: Sequence[TypeRule]) -> None:
    """Every regex is one.

    Raises:
        UsageError: names the rule.
    """
    for number, rule in enumerate(rules, start=1):
        for condition in rule.when:
            try:
                _contains("", condition.regex or "")
            except pl.exceptions.PolarsError as error:
                reason = str(error).strip().splitlines()[-1].removeprefix("error: ")
                raise UsageError(
                    f"[[type_rules]] {number}: regex {condition.regex!r} is none: {reason}; correct it"
                ) from None


def named_type(rules: Sequence[TypeRule], values: Mapping[str, object]) -> str | None:
    """The type that the rules give a request of these canonical ``values``; None: no rule holds."""
    for rule in rules:
        if all(_holds(condition, values.get(condition.column)) for condition in rule.when):
            return _name(rule)
    return None


def type_expression(rules: Sequence[TypeRule]) -> pl.Expr:
    """Canonical column ``type`` of a frame under the rules."""
    otherwise: pl.Expr = pl.col("type")
    for rule in reversed(rules):
        holds = [_condition(condition) for condition in rule.when]
        named = pl.lit(_name(rule))
        otherwise = pl.when(pl.all_horizontal(holds)).then(named).otherwise(otherwise) if holds else named
    return otherwise.alias("type")


def _name(rule: TypeRule) -> str:
    return TYPE_ALIASES.get(rule.is_, rule.is_)


def _holds(condition: TypeCondition, value: object) -> bool:
    if value is None:
        return False
    if condition.min is not None and not value >= condition.min:  # type: ignore[operator]
        return False
    if condition.max is not None and not value <= condition.max:  # type: ignore[operator]
        return False
    if condition.in_ is not None and value not in condition.in_:
        return False
    return condition.regex is None or _contains(str(value), condition.regex)


@lru_cache(maxsize=1 << 14)
def _contains(text: str, regex: str) -> bool:
    """The engine of frames, so that both spellings agree and no name can make a regex slow."""
    return bool(pl.Series([text]).str.contains(regex).item())


def _condition(condition: TypeCondition) -> pl.Expr:
    column = pl.col(condition.column)
    parts = [column.is_not_null()]
    if condition.min is not None:
        parts.append(column >= condition.min)
    if condition.max is not None:
        parts.append(column <= condition.max)
    if condition.in_ is not None:
        parts.append(column.is_in(list(condition.in_)))
    if condition.regex is not None:
        parts.append(column.str.contains(condition.regex))
    return pl.all_horizontal(parts).fill_null(False)
