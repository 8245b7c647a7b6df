"""All windowed metrics of one outcome: what production logged, or what the sandbox did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from fairreplay.config.model import Config, SloTtft
from fairreplay.metrics import jfi, preemption, scr, service, types
from fairreplay.metrics import weights as in_force
from fairreplay.metrics.entitlement import Floats, entitlements, fair_weights, over_time
from fairreplay.metrics.held import Held
from fairreplay.metrics.load import Bools, Columns, Group, Ints, Load
from fairreplay.metrics.options import MeasureOptions
from fairreplay.metrics.scanned import Scanned
from fairreplay.metrics.threads import in_order
from fairreplay.metrics.windows import Grid, grid
from fairreplay.trace.schema import TIMESTAMP

SCR_DEGRADED: Final = 0.95
JFI_DEGRADED: Final = 0.9
X_DEGRADED: Final = 0.7
TFR_DEGRADED: Final = 0.5

WINDOW_SCHEMA: Final[dict[str, pl.DataType]] = {
    "start": TIMESTAMP,
    "end": TIMESTAMP,
    "model": pl.String(),
    "source": pl.String(),
    "requests": pl.Int64(),
    "scr": pl.Float64(),
    "scr_weighted": pl.Float64(),
    "failing": pl.List(pl.String()),
    "tenants_insufficient": pl.Int64(),
    "jfi": pl.Float64(),
    "jfi_raw": pl.Float64(),
    "min_x": pl.Float64(),
    "min_x_tenant": pl.String(),
    "service_gap": pl.Float64(),
    "tfr": pl.Float64(),
    "tfr_raw": pl.Float64(),
    "tfr_type": pl.String(),
    "recompute_tax": pl.Float64(),
    "preemptions": pl.Int64(),
    "preempted_requests": pl.Int64(),
    "thrashing_requests": pl.Int64(),
    "fair_loss_raw": pl.Float64(),
    "drain": pl.Boolean(),
    "degraded": pl.Boolean(),
}
"""One row per window and model. Null: not judged. ``drain``: after the last arrival, left out of period figures."""

TENANT_SCHEMA: Final[dict[str, pl.DataType]] = {
    "start": TIMESTAMP,
    "model": pl.String(),
    "source": pl.String(),
    "tenant": pl.String(),
    "requests": pl.Int64(),
    "served": pl.Float64(),
    "demand": pl.Float64(),
    "entitlement": pl.Float64(),
    "x": pl.Float64(),
    "pass": pl.Boolean(),
    "backlog": pl.Boolean(),
    "ttft_p50_ms": pl.Float64(),
    "ttft_p90_ms": pl.Float64(),
    "ttft_p99_ms": pl.Float64(),
    "tail_ratio": pl.Float64(),
    "weight": pl.Float64(),
    "skew": pl.Float64(),
}
"""One row per window and tenant with requests or demand. Amounts in service units.

TTFT by nearest rank, null without samples and where the rank falls on a request that never got a first token;
``tail_ratio`` = P99/P50. ``weight`` is the one in force, ``skew`` that over the committed share, null without one."""

TYPE_SCHEMA: Final[dict[str, pl.DataType]] = {
    "start": TIMESTAMP,
    "model": pl.String(),
    "source": pl.String(),
    "type": pl.String(),
    "share": pl.Float64(),
    "floor": pl.Float64(),
    "ratio": pl.Float64(),
    "ratio_raw": pl.Float64(),
    "leak": pl.Float64(),
}


@dataclass(frozen=True)
class Measured:
    """The tables of one source, by model and window, and what was assumed to make them."""

    windows: pl.DataFrame
    tenants: pl.DataFrame
    types: pl.DataFrame
    slo: Mapping[str, SloTtft]
    assumed_slo: bool
    assumptions: tuple[str, ...]


CELLS_MAX: Final = 1 << 19
ROWS_MAX: Final = 1 << 19
"""Windows are measured in parts of about so many (window, tenant) cells and requests, which bounds the memory."""
ROWS_HELD_MAX: Final = 1 << 24
"""A scan of no more rows is held in memory; a longer one is read part by part."""


def measure(
    outcome: pl.DataFrame | pl.LazyFrame,
    config: Config,
    options: MeasureOptions,
    source: str,
    slo: tuple[Mapping[str, SloTtft], bool] | None = None,
) -> Measured:
    """Measure an outcome (canonical columns, the whole of it: the period is cut here, by ``since`` and ``until``).

    ``slo`` holds every source to the same targets: those that ``slos_of`` gave for the log. A request counts in the
    window of its arrival; service counts when it is delivered, also for requests that arrived before ``since``.
    """
    load = loaded(outcome)
    targets, assumed = slo if slo is not None else _slos(load, config, options)
    found = _tables(load, config, options, targets, source)
    return Measured(
        windows=_joined(found, "windows", WINDOW_SCHEMA),
        tenants=_joined(found, "tenants", TENANT_SCHEMA),
        types=_joined(found, "types", TYPE_SCHEMA),
        slo=targets,
        assumed_slo=assumed,
        assumptions=_assumptions(load, config, options, targets, assumed),
    )


def sliding(
    outcome: pl.DataFrame | pl.LazyFrame,
    config: Config,
    options: MeasureOptions,
    hop_us: int,
    source: str,
    slo: tuple[Mapping[str, SloTtft], bool],
) -> Measured:
    """As ``measure``, over windows that begin every ``hop_us`` and overlap: each is one of a tumbling grid of its own.

    "The window before" that a type's floor follows from is the one that ends where this one begins.
    """
    found = [
        measure(outcome, config, replace(options, offset_us=offset), source, slo)
        for offset in range(0, options.window_us, hop_us)
    ]
    return replace(
        found[0],
        **{
            name: pl.concat(getattr(one, name) for one in found).sort("model", "start", maintain_order=True)
            for name in ("windows", "tenants", "types")
        },
    )


def measure_windows(
    outcome: pl.DataFrame | pl.LazyFrame,
    config: Config,
    options: MeasureOptions,
    source: str,
    slo: Mapping[str, SloTtft],
) -> pl.DataFrame:
    """The table ``windows`` of ``measure`` alone: in less time, for whoever asks for many outcomes of one episode."""
    return _joined(_tables(loaded(outcome), config, options, slo, source, only_windows=True), "windows", WINDOW_SCHEMA)


def loaded(outcome: pl.DataFrame | pl.LazyFrame) -> Load:
    """``outcome`` as a load; of a scan, one that is not too long is read once and held."""
    if isinstance(outcome, pl.LazyFrame) and outcome.select(pl.len()).collect().item() > ROWS_HELD_MAX:
        return Scanned(outcome)
    return Held(outcome)


def models(rows: pl.DataFrame) -> list[str | None]:
    """The model groups of a load, by name; rows that name no model are a group of their own, first."""
    return sorted(rows["model"].unique().to_list(), key=lambda model: (model is not None, model or ""))


def slos_of(
    outcome: pl.DataFrame | pl.LazyFrame, config: Config, options: MeasureOptions
) -> tuple[dict[str, SloTtft], bool]:
    """TTFT targets by tenant, and whether they were assumed from ``outcome``."""
    return _slos(loaded(outcome), config, options)


def _slos(load: Load, config: Config, options: MeasureOptions) -> tuple[dict[str, SloTtft], bool]:
    if not load.groups:
        return {}, False
    first, end = min(group.first_us for group in load.groups), max(group.end_us for group in load.groups)
    return scr.slos(config, load, grid(first, end, options))


@dataclass(frozen=True)
class _Tables:
    """The tables of some windows of a model group; ``tenants`` and ``types`` are null if only windows are wanted."""

    windows: pl.DataFrame
    tenants: pl.DataFrame | None
    types: pl.DataFrame | None


def _joined(found: list[_Tables], name: str, schema: dict[str, pl.DataType]) -> pl.DataFrame:
    tables: list[pl.DataFrame] = [table for one in found if (table := getattr(one, name)) is not None]
    if not tables:
        return pl.DataFrame(schema=schema)
    return pl.concat(table.select(pl.col(name).cast(dtype) for name, dtype in schema.items()) for table in tables)


def _tables(
    load: Load,
    config: Config,
    options: MeasureOptions,
    slo: Mapping[str, SloTtft],
    source: str,
    only_windows: bool = False,
) -> list[_Tables]:
    end_us = max((group.end_us for group in load.groups), default=0)
    found = []
    for group in load.groups:
        whole = grid(group.first_us, group.end_us, options)
        windows_max = max(1, min(CELLS_MAX // len(group.tenants), whole.count * ROWS_MAX // group.rows))
        targets = scr.targets_us(slo, group.tenants)
        stamp = (pl.lit(group.model, pl.String).alias("model"), pl.lit(source).alias("source"))

        def sums_of(
            rows: Sequence[Columns], part: Grid, group: Group = group, targets: Ints = targets
        ) -> tuple[service.Sums, _Tables]:
            sums = service.sums(rows, part, group, targets, end_us, config.cost, options)
            return sums, _tenant_tables(sums, part, group, config, options, targets, only_windows)

        earlier: types.Arrivals | None = None
        parts = whole.parts(windows_max)
        for sums, tables in in_order(sums_of, load.parts(group, whole, windows_max)):
            kinds = types.measured(sums, config, earlier)
            earlier = kinds.last
            windows = tables.windows.with_columns(
                _column("tfr", kinds.tfr),
                _column("tfr_raw", kinds.tfr_raw),
                _names("tfr_type", group.types, kinds.whose),
            ).with_columns(degraded().alias("degraded"))
            table = _long(next(parts), "type", group.types, kinds.demand > 0, **kinds.columns)
            found.append(
                _Tables(
                    windows=windows.with_columns(stamp),
                    tenants=None if tables.tenants is None else tables.tenants.with_columns(stamp),
                    types=None if only_windows else table.with_columns(stamp),
                )
            )
    return found


def _tenant_tables(
    sums: service.Sums,
    part: Grid,
    group: Group,
    config: Config,
    options: MeasureOptions,
    targets: Ints,
    only_windows: bool,
) -> _Tables:
    """The tables of the windows of ``part``, type fairness left out: its floors follow from the part before."""
    judged = scr.judged(sums.tenants.sums, targets, options.min_samples)
    weights = over_time(config, part.starts_us(), lambda at: fair_weights(config, group.tenants, at))
    got, backlog = sums.tenants.served(config.cost), sums.tenants.backlog()
    demand = got + sums.tenants.unmet(config.cost)
    entitled = entitlements(got.sum(axis=1), weights, demand)
    x = jfi.attainment(got, entitled)
    min_x, whose = jfi.least_served(x, entitled)
    windows = part.frame().with_columns(
        pl.Series("requests", judged.requests.sum(axis=1)),
        *_scr(judged, weights, group.tenants),
        _column("jfi", jfi.jain(x, entitled > 0)),
        _column("jfi_raw", _jfi_raw(got, config, group.tenants, part.starts_us())),
        _column("min_x", min_x),
        _names("min_x_tenant", group.tenants, whose),
        _column("service_gap", jfi.service_gap(got / weights, sums.through)),
        _column("recompute_tax", preemption.taxes(sums.windows)),
        *preemption.counts(sums.windows),
        _column("fair_loss_raw", jfi.fair_loss_raw(weights, got)),
        pl.Series("drain", part.starts_us() > group.last_us),
    )
    if only_windows:
        return _Tables(windows, None, None)
    ttft_us = scr.quantiles_us(sums.tenants.sums, sums.answered_cell, sums.answered_us)
    ttft_ms = {q: np.where(np.isfinite(value), value / 1000, np.nan) for q, value in ttft_us.items()}
    stated = in_force.configured(config, group.tenants, part.starts_us())
    weight = np.where(np.isnan(sums.in_force), stated, sums.in_force)
    tenants = _long(
        part,
        "tenant",
        group.tenants,
        (judged.requests > 0) | (demand > 0),
        requests=judged.requests,
        served=got,
        demand=demand,
        entitlement=entitled,
        x=x,
        backlog=backlog,
        decided=judged.decided,
        passed=judged.passed,
        **{f"ttft_{q}_ms": value for q, value in ttft_ms.items()},
        tail_ratio=ttft_ms["p99"] / np.where(ttft_ms["p50"] > 0, ttft_ms["p50"], np.nan),
        weight=weight,
        skew=in_force.skews(weight, in_force.committed(config, group.tenants, part.starts_us())),
    ).with_columns(pl.when("decided").then("passed").alias("pass"))
    return _Tables(windows, tenants, None)


def degraded() -> pl.Expr:
    """Whether a window is degraded; the drain never is. Tenants with x < 1 have waiting or refused requests."""
    below = [
        pl.col("scr") < SCR_DEGRADED,
        pl.col("jfi") < JFI_DEGRADED,
        pl.col("min_x") < X_DEGRADED,
        pl.col("tfr") < TFR_DEGRADED,
    ]
    return pl.any_horizontal(test.fill_null(False) for test in below) & ~pl.col("drain")


def _scr(judged: scr.Judged, weights: Floats, tenants: Sequence[str]) -> list[pl.Series]:
    """``scr``, ``scr_weighted``, ``failing``, ``tenants_insufficient``; null SCR where nobody is judged."""
    known = judged.decided.any(axis=1)
    count, weight = judged.decided.sum(axis=1), (judged.decided * weights).sum(axis=1)
    passed, passed_weight = judged.passed.sum(axis=1), (judged.passed * weights).sum(axis=1)
    return [
        _column("scr", np.where(known, passed / np.where(known, count, 1), np.nan)),
        _column("scr_weighted", np.where(known, passed_weight / np.where(known, weight, 1.0), np.nan)),
        _lists("failing", judged.decided & ~judged.passed, tenants),
        pl.Series("tenants_insufficient", ((judged.requests > 0) & ~judged.decided).sum(axis=1)),
    ]


def _jfi_raw(got: Floats, config: Config, tenants: Sequence[str], starts_us: Ints) -> Floats:
    """The essay's form: served over committed tokens, of all tenants with a commitment, quiet ones included."""
    promised = [
        name for name, tenant in config.tenants.items() if tenant.committed_tokens_per_month or tenant.commitments
    ]
    if not promised:
        return np.full(len(got), np.nan)
    column = {name: index for index, name in enumerate(tenants)}
    served = np.stack([got[:, column[name]] if name in column else np.zeros(len(got)) for name in promised], axis=1)
    tokens = np.broadcast_to(in_force.committed(config, promised, starts_us), served.shape)
    return jfi.jain(served / np.where(tokens > 0, tokens, 1.0), tokens > 0)


# ---- arrays as columns ----


def _long(part: Grid, key: str, names: Sequence[str], which: Bools, **columns: NDArray[Any]) -> pl.DataFrame:
    """Arrays of shape (windows, names) as one row for each (window, name) of ``which``; NaN becomes null."""
    window, name = np.nonzero(which)
    start = pl.Series("start", part.starts_us()[window]).cast(TIMESTAMP)
    return pl.DataFrame(
        [start, _names(key, names, name), *(_column(title, array[which]) for title, array in columns.items())]
    )


def _column(name: str, values: NDArray[Any]) -> pl.Series:
    return pl.Series(name, values, nan_to_null=True)


def _names(name: str, names: Sequence[str], index: Ints) -> pl.Series:
    """The names at these places; null where the place is negative."""
    places = pl.Series(np.where(index < 0, len(names), index))
    return pl.Series(name, [*names, None], dtype=pl.String).gather(places)


def _lists(name: str, which: Bools, names: Sequence[str]) -> pl.Series:
    """The names of each row's true entries, shape (rows, names) to (rows,)."""
    _, place = np.nonzero(which)
    ends = np.concatenate([[0], np.cumsum(which.sum(axis=1))])
    lists = pa.LargeListArray.from_arrays(pa.array(ends), _names(name, names, place).to_arrow())
    return pl.Series(name, lists, dtype=pl.List(pl.String))


def _assumptions(
    load: Load, config: Config, options: MeasureOptions, slo: Mapping[str, SloTtft], assumed: bool
) -> tuple[str, ...]:
    """What a reader must know to trust the tables, in a fixed order."""
    said = []
    if assumed:
        target = next(slo[tenant] for tenant in sorted(slo) if config.slo_ttft_ms(tenant) is None)
        said.append(
            f"assumed SLO: TTFT P50 {target.p50:.0f} ms, P90 {target.p90:.0f} ms, P99 {target.p99:.0f} ms, 1.5 times "
            "the pooled quantiles of all tenants over the calmer half of the windows"
        )
    if not slo:
        said.append("no SLO: none is set and the rows have no first tokens, so SCR is not judged")
    if load.all_null("first_token_at") and load.all_null("finished_at"):
        said.append(
            "no decisions are logged (arrivals only): nothing is known to have been served, so fairness of service is "
            "not judged; a baseline replay stands for production (simulated baseline)"
        )
    elif load.all_null("scheduled_at"):
        said.append("scheduled_at is unknown: a request is taken to wait until its first token")
    if load.all_null("preemptions"):
        said.append("preemptions are unknown in this source; they are not counted as none")
    if load.groups and len({kind for group in load.groups for kind in group.types}) == 1:
        said.append("all requests are of one type, so type fairness has nothing to compare")
    unknown = max(load.unknown("prompt_tokens"), load.unknown("output_tokens"))
    if unknown:
        said.append(f"sizes are unknown in {unknown} rows: what they ask for is taken to be their tenant's median")
    if not config.says_weights():
        said.append("no commitments or weights are set: every tenant is entitled to the same share")
    if options.refusals == "drop":
        said.append("refused requests are left out of SCR (--refusals drop)")
    return tuple(said)
