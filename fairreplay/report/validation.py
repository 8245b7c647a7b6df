"""The sandbox against reality: a change of policy predicted from one log, and the log that the change really made.

Two real logs of the same arrivals under two policies, and the sandbox's replay of the first log's load under both. The
sandbox was fitted to the first log only; the second is held out.
"""

from __future__ import annotations

from typing import Final

import polars as pl
from scipy.stats import spearmanr

from fairreplay.config.model import Config, Defaults, SloTtft
from fairreplay.errors import BadInputError
from fairreplay.metrics.measure import measure
from fairreplay.metrics.options import measure_options
from fairreplay.report.rounding import rounded
from fairreplay.report.schema import HeldOutSide, HeldOutTenant, Validation
from fairreplay.report.ttft import nearest_rank, quantiles, ttft_ms

KEY: Final = ("arrived_at", "seq")
"""What makes two rows of two logs the same request."""
TENANTS_MIN: Final = 3
"""Rank correlation needs at least this many tenants."""


def held_out(
    *,
    before: str,
    after: str,
    before_logged: pl.DataFrame,
    after_logged: pl.DataFrame,
    before_replayed: pl.DataFrame,
    after_replayed: pl.DataFrame,
    slo: SloTtft,
) -> Validation:
    """The comparison over the requests that all four outcome frames hold.

    ``before`` and ``after`` name the policies. Every tenant is held to ``slo``, every quantile is judged, and a request
    without a first token misses. Change of a tenant = its median TTFT after, less before, over requests with a first
    token; ``spearman`` is the rank correlation of real and predicted change over the tenants.

    Raises:
        BadInputError: the logs share no request.
    """
    frames = [before_logged, after_logged, before_replayed, after_replayed]
    common = frames[0].select(KEY)
    for frame in frames[1:]:
        common = common.join(frame.select(KEY), on=KEY, how="semi")
    if common.is_empty():
        raise BadInputError(
            f"the {before} log and the {after} log share no request (arrival, order); take logs of one load"
        )
    sides = [frame.join(common, on=KEY, how="semi", maintain_order="left") for frame in frames]
    logged_before, logged_after, replayed_before, replayed_after = sides
    tenants = _tenants(logged_before, logged_after, replayed_before, replayed_after)
    described = [_side(frame, slo) for frame in sides]
    return {
        "before": before,
        "after": after,
        "requests": common.height,
        "slo_ttft_ms": {"p50": slo.p50, "p90": slo.p90, "p99": slo.p99},
        "before_logged": described[0],
        "before_replayed": described[2],
        "after_logged": described[1],
        "after_replayed": described[3],
        "before_error": _errors(described[0], described[2]),
        "after_error": _errors(described[1], described[3]),
        "spearman": _spearman(tenants),
        "tenants": tenants,
    }


def _side(outcome: pl.DataFrame, slo: SloTtft) -> HeldOutSide:
    config = Config(defaults=Defaults(slo_ttft_ms=slo))
    options = measure_options(config, window="0", min_samples=1)
    verdicts = measure(outcome, config, options, "").tenants["pass"].drop_nulls()
    return {
        "judged": len(verdicts),
        "passing": int(verdicts.sum()),
        "ttft_ms": {q: rounded(value) for q, value in quantiles(outcome).items()},
    }


def _errors(logged: HeldOutSide, replayed: HeldOutSide) -> dict[str, float | None]:
    found = {}
    for q, real in logged["ttft_ms"].items():
        answer = replayed["ttft_ms"][q]
        found[q] = None if not real or answer is None else rounded((answer - real) / real)
    return found


def _tenants(
    logged_before: pl.DataFrame, logged_after: pl.DataFrame, replayed_before: pl.DataFrame, replayed_after: pl.DataFrame
) -> list[HeldOutTenant]:
    """Tenants with a median on all four sides, largest first."""
    medians = [_medians(frame) for frame in (logged_before, logged_after, replayed_before, replayed_after)]
    counts = logged_before["tenant"].value_counts().sort(["count", "tenant"], descending=[True, False])
    rows: list[HeldOutTenant] = []
    for tenant, count in counts.iter_rows():
        found = [side.get(tenant) for side in medians]
        known = [value for value in found if value is not None]
        if len(known) < len(found):
            continue
        real_before, real_after, sandbox_before, sandbox_after = known
        rows.append(
            {
                "tenant": tenant,
                "requests": count,
                "logged_before_ms": real_before,
                "logged_after_ms": real_after,
                "replayed_before_ms": sandbox_before,
                "replayed_after_ms": sandbox_after,
                "real_change_ms": round(real_after - real_before, 6),
                "predicted_change_ms": round(sandbox_after - sandbox_before, 6),
            }
        )
    return rows


def _medians(outcome: pl.DataFrame) -> dict[str, float | None]:
    return {rows["tenant"][0]: rounded(nearest_rank(ttft_ms(rows), 500)) for rows in outcome.partition_by("tenant")}


def _spearman(tenants: list[HeldOutTenant]) -> float | None:
    """Null below ``TENANTS_MIN`` tenants, or where either side has one value only."""
    real = [row["real_change_ms"] for row in tenants]
    predicted = [row["predicted_change_ms"] for row in tenants]
    if len(tenants) < TENANTS_MIN or len(set(real)) < 2 or len(set(predicted)) < 2:
        return None
    return rounded(float(spearmanr(real, predicted).statistic))
