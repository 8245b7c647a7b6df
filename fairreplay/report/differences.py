"""What each replay decided otherwise than production, as rows of the document: for the period and for each episode."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import polars as pl

from fairreplay.causes.differences import Differences, compared_with, differences
from fairreplay.causes.episodes import Episode
from fairreplay.causes.review import Source, inside
from fairreplay.metrics.load import Ints
from fairreplay.metrics.options import MeasureOptions
from fairreplay.report import text
from fairreplay.report.rounding import rounded
from fairreplay.report.schema import Decisions, Matrix, RequestChange, TenantChange, WindowChange
from fairreplay.store.outcome_rows import arrived_between, of_model

NAMED_MAX: Final = 2
"""Tenants that a sentence names on either side."""
EPISODE_TENANTS_MAX: Final = 8
"""Tenants of either side that an episode's row holds; the period's holds all."""
MATRIX_MAX: Final = 14
EPISODE_MATRIX_MAX: Final = 8
NAME_MAX: Final = 48


def of_period(found: Sequence[Source], options: MeasureOptions) -> list[Decisions]:
    """Every replay against production over the period, in the order of ``found``."""
    return [
        _row(one, is_baseline, None, MATRIX_MAX)
        for one, is_baseline in _against(found, options, [inside(source.outcome, options) for source in found])
    ]


def of_episodes(
    found: Sequence[Source], options: MeasureOptions, episodes: Sequence[Episode]
) -> dict[str, list[Decisions]]:
    """By episode: every replay against production over the requests of its model that arrived in it."""
    rows: dict[str, list[Decisions]] = {}
    for episode in episodes:
        parts = [
            of_model(arrived_between(source.outcome, episode.start, episode.end), episode.model) for source in found
        ]
        rows[episode.id] = [
            _row(one, is_baseline, EPISODE_TENANTS_MAX, EPISODE_MATRIX_MAX)
            for one, is_baseline in _against(found, options, parts)
        ]
    return rows


def _against(
    found: Sequence[Source], options: MeasureOptions, rows: Sequence[pl.DataFrame]
) -> Iterator[tuple[Differences, bool]]:
    """One replay after the other (their tables are large), and whether it is the baseline."""
    against = compared_with(found)
    if against is None:
        return
    production, simulated = against
    place = next(index for index, source in enumerate(found) if source is production)
    for index, source in enumerate(found):
        if index > 0 and source is not production:
            yield (
                differences(
                    rows[place],
                    rows[index],
                    options,
                    production_name=production.name,
                    policy=source.name,
                    simulated=simulated,
                ),
                source.is_baseline,
            )


def _row(one: Differences, is_baseline: bool, tenants_max: int | None, matrix_max: int) -> Decisions:
    change = pl.col("ttft_mean_change_us")
    gains = one.tenants.filter(change < 0).sort(change, "tenant")
    pays = one.tenants.filter(change > 0).sort(change, "tenant", descending=[True, False])
    return {
        "policy": one.policy,
        "production": one.production,
        "simulated": one.simulated,
        "sentence": _errs(one) if is_baseline else _sentence(one, gains, pays),
        "requests": one.requests,
        "only_production": one.only_production,
        "only_replay": one.only_replay,
        "refused_only_production": one.refused_only_production,
        "refused_only_replay": one.refused_only_replay,
        "preemptions_production": one.preemptions_production,
        "preemptions_replay": one.preemptions_replay,
        "ordered_by": one.ordered_by,
        "ordered": one.ordered,
        "pairs": one.pairs,
        "inversions": one.inversions,
        "tenants_gain": len(gains),
        "tenants_pay": len(pays),
        "tenants_same": len(one.tenants) - len(gains) - len(pays),
        "gains": [_tenant(row) for row in gains.head(tenants_max or len(gains)).iter_rows(named=True)],
        "pays": [_tenant(row) for row in pays.head(tenants_max or len(pays)).iter_rows(named=True)],
        "matrix": matrix(one.overtaking, matrix_max),
        "windows": [_window(row) for row in one.windows.iter_rows(named=True)],
        "largest": [_request(row) for row in one.largest.iter_rows(named=True)],
    }


def _errs(one: Differences) -> str:
    """Of the baseline replay: where it decides otherwise than the log of the same policy, the sandbox errs."""
    if one.requests == 0:
        return f"{one.policy} and {one.production} hold no request in common: nothing to compare."
    most = one.tenants["ttft_mean_change_us"].abs().max()
    moved = "" if most is None else f"; a tenant's mean TTFT is off by at most {float(most) / 1e6:.1f} s"  # type: ignore[arg-type]
    order = f"{one.inversions / one.pairs:.1%} of the pairs in the other order than" if one.pairs else "as"
    return f"{one.policy} is the baseline: it serves {order} {one.production}{moved}. That is the sandbox's error."


def _sentence(one: Differences, gains: pl.DataFrame, pays: pl.DataFrame) -> str:
    if one.requests == 0:
        return f"{one.policy} and {one.production} hold no request in common: nothing to compare."
    if gains.is_empty() and pays.is_empty():
        return f"Under {one.policy} nobody's mean TTFT would change."
    sides = [
        f"{_count(rows, 'tenant')} would {verb} ({_named(rows, sign)})"
        for rows, verb, sign in ((gains, "gain", "-"), (pays, "pay", "+"))
        if len(rows)
    ]
    nobody = "" if len(sides) == 2 else ", and nobody would pay" if len(gains) else ", and nobody would gain"
    return f"Under {one.policy} {' and '.join(sides)}{nobody}."


def _named(rows: pl.DataFrame, sign: str) -> str:
    """The tenants whose mean TTFT changes most, with the replay's numbers."""
    said = [
        f"{text.short(row['tenant'], NAME_MAX)}: mean TTFT {sign}{abs(row['ttft_mean_change_us']) / 1e6:.1f} s"
        + (
            f", P90 {row['ttft_p90_us_production'] / 1e6:.1f} to {row['ttft_p90_us_replay'] / 1e6:.1f} s"
            if row["ttft_p90_us_production"] is not None and row["ttft_p90_us_replay"] is not None
            else ""
        )
        for row in rows.head(NAMED_MAX).iter_rows(named=True)
    ]
    more = len(rows) - len(said)
    return "; ".join(said) + (f"; and {more} more" if more else "")


def _count(rows: pl.DataFrame, noun: str) -> str:
    return text.plural(len(rows), noun)


def _tenant(row: dict[str, Any]) -> TenantChange:
    return {
        "tenant": row["tenant"],
        "requests": row["requests"],
        "answered": row["answered"],
        "production_ttft_ms": {q: _ms(row[f"ttft_{q}_us_production"]) for q in ("p50", "p90", "p99")},
        "replay_ttft_ms": {q: _ms(row[f"ttft_{q}_us_replay"]) for q in ("p50", "p90", "p99")},
        "mean_change_ms": _ms(row["ttft_mean_change_us"]),
        "production_refused": row["refused_production"],
        "replay_refused": row["refused_replay"],
    }


def _window(row: dict[str, Any]) -> WindowChange:
    return {
        "start": text.iso(row["start"]),
        "model": row["model"],
        "requests": row["requests"],
        "moved_ms": row["ttft_moved_us"] / 1000,
        "mean_change_ms": _ms(row["ttft_mean_change_us"]),
        "refused_otherwise": row["refused_otherwise"],
    }


def _request(row: dict[str, Any]) -> RequestChange:
    return {
        "request_id": row["request_id"],
        "tenant": row["tenant"],
        "type": row["type"],
        "model": row["model"],
        "arrived_at": text.iso(row["arrived_at"]),
        "tokens": row["tokens"],
        "production_wait_ms": _ms(row["wait_us_production"]),
        "replay_wait_ms": _ms(row["wait_us_replay"]),
        "production_ttft_ms": _ms(row["ttft_us_production"]),
        "replay_ttft_ms": _ms(row["ttft_us_replay"]),
        "production_finish_ms": _ms(row["finish_us_production"]),
        "replay_finish_ms": _ms(row["finish_us_replay"]),
        "production_refused": row["refused_production"],
        "replay_refused": row["refused_replay"],
    }


def matrix(overtaking: pl.DataFrame, tenants_max: int) -> Matrix:
    """The overtakes (``causes.differences.MATRIX_SCHEMA``) as a square, the most involved tenants first.

    Involved: tokens that a tenant sent ahead of others, or others ahead of it. The rest are summed up as others.
    """
    involved: dict[str, int] = {}
    for overtaker, overtaken, _, tokens in overtaking.iter_rows():
        for tenant in {overtaker, overtaken} - {None}:
            involved[tenant] = involved.get(tenant, 0) + tokens
    ranked = sorted(involved, key=lambda tenant: (-involved[tenant], tenant))
    names = ranked[:tenants_max]
    others = len(ranked) > len(names) or overtaking.select(pl.col("overtaker", "overtaken").has_nulls()).row(0) != (
        False,
        False,
    )
    place = {name: index for index, name in enumerate(names)}
    size = len(names) + others
    pairs, ahead = np.zeros((size, size), np.int64), np.zeros((size, size), np.int64)
    for overtaker, overtaken, count, tokens in overtaking.iter_rows():
        at = place.get(overtaker, len(names)), place.get(overtaken, len(names))
        pairs[at] += count
        ahead[at] += tokens
    return {"tenants": names, "others": others, "pairs": _listed(pairs), "tokens": _listed(ahead)}


def _listed(values: Ints) -> list[list[int]]:
    return [[int(value) for value in row] for row in values]


def _ms(micros: float | None) -> float | None:
    return None if micros is None else rounded(micros / 1000)
