"""Fit the step-time model and the effective KV size to a log, through the sandbox itself.

The log decides twice: a regression over it gives the start (``first_guess``), then a search over the logarithms of
the values, with the engine in the loop, makes the simulated TTFT and decode times match. Only every second request's
times are fitted, by the regression and by the search; the others tell how good the fit is (they stay part of the load,
and of what the regression knows of who ran when). No randomness, no clock: the number of simulations is the stopping
rule, so the same log gives the same file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import numpy as np
import polars as pl
from scipy.optimize import minimize

from fairreplay.config.model import STEP_TIME_KEYS, ClusterTable, Config, StepTime, resolve_cluster
from fairreplay.errors import BadInputError, UsageError, nearest
from fairreplay.planning.first_guess import Bools, Floats, Guess, Observed, first_guess, seconds_per_output_token
from fairreplay.planning.fixed_rate import fitted_rate, queue_ttft
from fairreplay.sandbox import compiled
from fairreplay.sandbox.engine import NEVER, PS_PER_SECOND, Int64s
from fairreplay.sandbox.plan import Load, Shard, baseline_policy, settings_over_time, shards, take_load

Batching = Literal["mixed", "prefill-first"]
Admission = Literal["chunk", "reserve"]
Values = dict[str, Any]
"""Keys of ``[cluster]`` with the values that the fit found; ``step_time`` holds a dict of its four."""
OnSimulation = Callable[[int, int], None]
"""Called after each simulation with (done, at most)."""

SIMULATIONS: Final = 100
CANDIDATES: Final[tuple[tuple[Batching, Admission], ...]] = (
    ("mixed", "chunk"),
    ("prefill-first", "reserve"),
    ("prefill-first", "chunk"),
)
"""What ``--batching auto`` tries: vLLM V1; LightLLM, S-LoRA and TGI; vLLM V0."""
QUANTILES: Final = (10, 25, 50, 75, 90, 95, 99)
UNSERVED_LOSS: Final = 5.0
"""Loss of a request that the log served and the sandbox did not: a time wrong by a factor of e^5."""
DIGITS: Final = 4
"""Significant digits of a fitted value: more would claim what no log can show."""
MIN_ROWS: Final = 20


@dataclass(frozen=True)
class FitError:
    """How far the sandbox is from the log over one half of the requests. Relative errors: ``simulated / log - 1``."""

    requests: int
    ttft_p50_error: float
    ttft_p90_error: float
    ttft_p99_error: float
    ttft_median_error: float
    """Median over requests of ``|log((ttft + s) / (logged ttft + s))|``, s = seconds per output token."""
    decode_median_error: float
    """The same of the time from first to last token."""
    loss: float
    """What the search makes small; see ``_loss``."""


@dataclass(frozen=True)
class RateError:
    """Relative errors of TTFT (``predicted / log - 1``) of a queue of a fixed rate, over one half of the requests."""

    requests: int
    ttft_p50_error: float
    ttft_p90_error: float
    ttft_p99_error: float
    ttft_median_error: float
    """As in ``FitError``."""


@dataclass(frozen=True)
class FixedRate:
    """The linear baseline (``planning.fixed_rate``), its one number fitted to the same half by the same TTFT loss."""

    tokens_per_s: float
    fitted: RateError
    held_out: RateError


@dataclass(frozen=True)
class Calibration:
    """The fitted values, and the errors before and after on the fitted and on the held-out half."""

    model: str | None
    """The ``[models.NAME]`` that takes the values; None = ``[cluster]``."""
    values: Values
    kept: tuple[str, ...]
    """Values that the log does not determine, with the reason; they stay as configured."""
    before_fitted: FitError
    before_held_out: FitError
    after_fitted: FitError
    after_held_out: FitError
    fixed_rate: FixedRate
    simulations: int


@dataclass(frozen=True)
class _Problem:
    """The log beside the load: what a simulation is compared with."""

    load: Load
    planned: tuple[Shard, ...]
    observed: tuple[Observed, ...]
    config: Config
    model: str | None
    table: str | None
    """The ``[models.NAME]`` that takes the values; None = ``[cluster]``."""
    token_s: float


def calibrate(
    frame: pl.DataFrame,
    config: Config,
    *,
    model: str | None = None,
    batching: Literal["auto"] | None = None,
    simulations: int = SIMULATIONS,
    on_simulation: OnSimulation | None = None,
) -> Calibration:
    """Fit ``base``, ``prefill_token``, ``decode_sequence``, ``context_token``, ``num_gpu_blocks`` and, where the log
    shows them, ``max_num_seqs`` and ``prefill_interval`` to the log in ``frame`` (canonical columns).

    Args:
        config: gives policy, batching, admission and everything else that is not fitted.
        model: which model's rows; needed where the log holds several.
        batching: ``"auto"`` also chooses batching and admission: a short fit of each, a long one of the best.
        simulations: how many runs of the engine the search may take.

    Raises:
        UsageError: no such model, or several and none named.
        BadInputError: too few requests with first token and finish.
    """
    problem = _problem(frame, config, model)
    search = _Search(problem, simulations, on_simulation)
    before = search.outcome({})
    if batching == "auto":
        trials = [_fit(search, *candidate, budget=simulations // 8) for candidate in CANDIDATES]
        best = min(trials, key=lambda trial: trial.loss)
        found = _refine(search, best, budget=simulations - search.done)
    else:
        engine = resolve_cluster(config, problem.model).engine
        found = _fit(search, engine.batching, engine.admission, budget=simulations - search.done)
    after = search.outcome(found.values)
    values = dict(found.values)
    if batching is None:
        del values["batching"], values["admission"]
    return Calibration(
        model=problem.table,
        values=values,
        kept=found.kept,
        before_fitted=_error(problem, before, held_out=False),
        before_held_out=_error(problem, before, held_out=True),
        after_fitted=_error(problem, after, held_out=False),
        after_held_out=_error(problem, after, held_out=True),
        fixed_rate=_fixed_rate(problem),
        simulations=search.done,
    )


def with_values(config: Config, model: str | None, values: Values) -> Config:
    """``config`` with ``values`` in ``[cluster]``, or in ``[models.NAME]`` for a named model."""
    update = dict(values)
    if "step_time" in update:
        update["step_time"] = StepTime(**update["step_time"])
    if model is None:
        return config.model_copy(update={"cluster": config.cluster.model_copy(update=update)})
    table = config.models.get(model, ClusterTable()).model_copy(update=update)
    return config.model_copy(update={"models": config.models | {model: table}})


def _problem(frame: pl.DataFrame, config: Config, model: str | None) -> _Problem:
    names = sorted(name for name in frame["model"].unique().to_list() if name is not None)
    has_unnamed = frame["model"].null_count() > 0
    if model is not None and model not in names:
        raise UsageError(f"model {model!r} is not in the log; {nearest(model, names)}")
    if model is None and len(names) + has_unnamed > 1:
        raise UsageError("the log holds several models: name one with --model (" + ", ".join(names) + ")")
    only = len(names) + has_unnamed == 1
    chosen = model if model is not None else (names[0] if names else None)
    load = take_load(frame if only else frame.filter(pl.col("model") == chosen))
    planned = shards(load, config, baseline_policy(config))
    observed = tuple(_observed(load, shard) for shard in planned)
    usable = sum(int(np.sum(~np.isnan(part.finished))) for part in observed)
    if usable < MIN_ROWS:
        raise BadInputError(
            f"only {usable} requests of the log have both first_token_at and finished_at: "
            f"calibrate needs at least {MIN_ROWS} (a log of served requests with their latencies)"
        )
    return _Problem(
        load=load,
        planned=planned,
        observed=observed,
        config=config,
        model=chosen,
        table=None if only and chosen not in config.models else chosen,
        token_s=seconds_per_output_token(observed),
    )


def _observed(load: Load, shard: Shard) -> Observed:
    part = load.frame[shard.rows]
    is_known = (
        (part["status"] == "ok") & part["first_token_at"].is_not_null() & part["finished_at"].is_not_null()
    ).to_numpy()

    def seconds(column: str) -> Floats:
        instant_us = part[column].to_physical()
        relative = (instant_us.fill_null(0).to_numpy() - load.start_us) / 1e6
        return np.where(is_known & instant_us.is_not_null().to_numpy(), relative, np.nan)

    return Observed(
        arrival=(part["arrived_at"].to_physical().to_numpy() - load.start_us) / 1e6,
        scheduled=seconds("scheduled_at"),
        first_token=seconds("first_token_at"),
        finished=seconds("finished_at"),
        prompt=shard.workload.prompt_tokens.astype(np.float64),
        output=shard.workload.output_tokens.astype(np.float64),
        fitted=is_known & (shard.rows % 2 == 0),
    )


# The sandbox beside the log.


@dataclass(frozen=True)
class _Outcome:
    """Times of all requests of the problem that the log knows, in one order, logged and simulated; seconds."""

    fitted: Bools
    logged: dict[str, Floats]
    simulated: dict[str, Floats]


def _simulate(problem: _Problem, values: Values) -> _Outcome:
    config = with_values(problem.config, problem.table, values)
    cluster = resolve_cluster(config, problem.model)
    policy = baseline_policy(config)
    fitted: list[Bools] = []
    logs: list[dict[str, Floats]] = []
    simulations: list[dict[str, Floats]] = []
    for shard, log in zip(problem.planned, problem.observed, strict=True):
        settings = settings_over_time(cluster, config, policy, shard.workload, problem.load.start_us)
        result = compiled.run(shard.workload, replace(shard.plan, settings=settings))
        known = ~np.isnan(log.finished)

        def seconds(instants: Int64s, known: Bools = known) -> Floats:
            instants = instants[known]
            return np.where(instants == NEVER, np.nan, instants / PS_PER_SECOND)

        scheduled, first, finished = (
            seconds(result.scheduled_ps),
            seconds(result.first_token_ps),
            seconds(result.finished_ps),
        )
        fitted.append(log.fitted[known])
        logs.append(
            {
                "ttft": (log.first_token - log.arrival)[known],
                "prefill": (log.first_token - log.scheduled)[known],
                "decode": (log.finished - log.first_token)[known],
            }
        )
        simulations.append(
            {"ttft": first - log.arrival[known], "prefill": first - scheduled, "decode": finished - first}
        )

    def joined(parts: list[dict[str, Floats]]) -> dict[str, Floats]:
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    return _Outcome(fitted=np.concatenate(fitted), logged=joined(logs), simulated=joined(simulations))


def _log_errors(simulated: Floats, logged: Floats, soft_s: float) -> Floats:
    """``|log((simulated + s) / (logged + s))|``; ``UNSERVED_LOSS`` where the sandbox has no time; at most that."""
    errors: Floats = np.abs(np.log((np.maximum(simulated, 0) + soft_s) / (np.maximum(logged, 0) + soft_s)))
    errors[np.isnan(errors) | (errors > UNSERVED_LOSS)] = UNSERVED_LOSS
    return errors


def _loss(problem: _Problem, outcome: _Outcome, rows: Bools) -> float:
    """Mean log error of TTFT over ``rows``, of its quantiles, of decode times and, where logged, of prefill times.

    All times are softened by the seconds per output token, so that a wrong millisecond is no wrong order.
    """
    soft_s = problem.token_s
    logged, simulated = outcome.logged, outcome.simulated
    loss = _ttft_loss(simulated["ttft"][rows], logged["ttft"][rows], soft_s)
    loss += float(_log_errors(simulated["decode"][rows], logged["decode"][rows], soft_s).mean())
    timed = rows & ~np.isnan(logged["prefill"])
    if timed.any():
        loss += float(_log_errors(simulated["prefill"][timed], logged["prefill"][timed], soft_s).mean())
    return loss


def _ttft_loss(simulated: Floats, logged: Floats, soft_s: float) -> float:
    """Mean log error of the requests, and of their quantiles."""
    loss = float(_log_errors(simulated, logged, soft_s).mean())
    served = simulated[~np.isnan(simulated)]
    if len(served) == 0:
        return loss + UNSERVED_LOSS
    return loss + float(_log_errors(_nearest_ranks(served), _nearest_ranks(logged), soft_s).mean())


def _nearest_ranks(values: Floats, quantiles: Sequence[int] = QUANTILES) -> Floats:
    ordered = np.sort(values)
    return np.array([ordered[(q * len(ordered) + 99) // 100 - 1] for q in quantiles])


def _error(problem: _Problem, outcome: _Outcome, *, held_out: bool) -> FitError:
    rows = ~outcome.fitted if held_out else outcome.fitted
    ttft, logged_ttft = outcome.simulated["ttft"], outcome.logged["ttft"]
    relative = _relative(ttft[rows], logged_ttft[rows])
    decode = _log_errors(outcome.simulated["decode"][rows], outcome.logged["decode"][rows], problem.token_s)
    return FitError(
        requests=int(rows.sum()),
        ttft_p50_error=float(relative[0]),
        ttft_p90_error=float(relative[1]),
        ttft_p99_error=float(relative[2]),
        ttft_median_error=float(np.median(_log_errors(ttft[rows], logged_ttft[rows], problem.token_s))),
        decode_median_error=float(np.median(decode)),
        loss=_loss(problem, outcome, rows),
    )


def _relative(simulated: Floats, logged: Floats) -> Floats:
    """Relative errors of P50, P90 and P99; -1 where nothing was served."""
    served = simulated[~np.isnan(simulated)]
    if len(served) == 0:
        return np.full(3, -1.0)
    theirs = _nearest_ranks(logged, (50, 90, 99))
    return np.asarray(_nearest_ranks(served, (50, 90, 99)) / np.maximum(theirs, 1e-6) - 1)


def _fixed_rate(problem: _Problem) -> FixedRate:
    parts = problem.observed
    known = [~np.isnan(part.finished) for part in parts]
    logged = np.concatenate([(part.first_token - part.arrival)[rows] for part, rows in zip(parts, known, strict=True)])
    fitted = np.concatenate([part.fitted[rows] for part, rows in zip(parts, known, strict=True)])

    def predicted(tokens_per_s: float) -> Floats:
        return np.concatenate([queue_ttft(part, tokens_per_s)[rows] for part, rows in zip(parts, known, strict=True)])

    def loss(tokens_per_s: float) -> float:
        return _ttft_loss(predicted(tokens_per_s)[fitted], logged[fitted], problem.token_s)

    rate = fitted_rate(parts, loss)
    found = predicted(rate)

    def error(rows: Bools) -> RateError:
        p50, p90, p99 = _relative(found[rows], logged[rows])
        median = float(np.median(_log_errors(found[rows], logged[rows], problem.token_s)))
        return RateError(int(rows.sum()), float(p50), float(p90), float(p99), median)

    return FixedRate(tokens_per_s=_significant(rate), fitted=error(fitted), held_out=error(~fitted))


# The search.


class _Search:
    """Counts simulations, and remembers the best values that were tried."""

    def __init__(self, problem: _Problem, simulations: int, on_simulation: OnSimulation | None) -> None:
        self.problem = problem
        self.done = 0
        self._most = simulations
        self._on_simulation = on_simulation

    def outcome(self, values: Values) -> _Outcome:
        outcome = _simulate(self.problem, values)
        self.done += 1
        if self._on_simulation is not None:
            self._on_simulation(self.done, self._most)
        return outcome

    def loss(self, values: Values) -> float:
        outcome = self.outcome(values)
        return _loss(self.problem, outcome, outcome.fitted)


@dataclass(frozen=True)
class _Point:
    """A place in the search: logarithms of the fitted values, and what stays fixed beside them."""

    batching: Batching
    admission: Admission
    logs: Floats
    """log of the four step-time coefficients, and of the usable KV blocks if the log determines them."""
    block_count: int | None
    """``num_gpu_blocks`` where the log does not determine it and the configured size is too small for the log."""
    max_num_seqs: int | None
    prefill_interval: int | None
    kept: tuple[str, ...]
    loss: float = np.inf

    @property
    def values(self) -> Values:
        numbers = [_significant(float(number)) for number in np.exp(self.logs)]
        values: Values = {"step_time": dict(zip(STEP_TIME_KEYS, numbers[:4], strict=True))}
        if len(numbers) > 4:
            values["num_gpu_blocks"] = max(2, round(float(np.exp(self.logs[4]))) + 1)  # one block is reserved
        elif self.block_count is not None:
            values["num_gpu_blocks"] = self.block_count
        if self.max_num_seqs is not None:
            values["max_num_seqs"] = self.max_num_seqs
        if self.prefill_interval is not None:
            values["prefill_interval"] = self.prefill_interval
        return values | {"batching": self.batching, "admission": self.admission}


def _significant(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")


def _fit(search: _Search, batching: Batching, admission: Admission, budget: int) -> _Point:
    """First guess, then the search from there."""
    problem = search.problem
    block_size = resolve_cluster(problem.config, problem.model).engine.block_size
    guess = first_guess(problem.observed, batching == "prefill-first", admission == "reserve", block_size)
    return _refine(search, _start(problem, guess, batching, admission), budget)


def _start(problem: _Problem, guess: Guess, batching: Batching, admission: Admission) -> _Point:
    engine = resolve_cluster(problem.config, problem.model).engine
    seconds = np.array([guess.base, guess.prefill_token, guess.decode_sequence, guess.context_token]) * engine.speed
    kept = []
    blocks = None
    if guess.kv_tokens is not None:
        seconds = np.append(seconds, max(1.0, guess.kv_tokens / engine.block_size))
    else:
        least = round(guess.kv_tokens_min * 1.05 / engine.block_size) + 1
        if least > engine.num_gpu_blocks:
            blocks = least
        kept.append(f"num_gpu_blocks: the log shows no queue for memory; it holds at least {least} blocks")
    return _Point(
        batching=batching,
        admission=admission,
        logs=np.log(seconds),
        block_count=blocks,
        max_num_seqs=guess.max_num_seqs,
        prefill_interval=guess.prefill_interval if batching == "prefill-first" else None,
        kept=tuple(kept),
    )


def _refine(search: _Search, start: _Point, budget: int) -> _Point:
    """Grids, then Nelder-Mead twice, as far as the budget goes.

    First the few directions that the first guess leaves open (KV, decode speed as a whole, prefill speed): a queue
    makes the loss rough in them, so a grid looks around before the simplex starts. Then the neighbours of the prefill
    interval, then each value by itself in small steps: base, sequences and context all make decoding slower, and only
    the regression tells them apart.
    """
    last = search.done + budget
    coarse, fine = _COARSE[:, : len(start.logs)], _FINE[: len(start.logs), : len(start.logs)]
    coarse = coarse[np.any(coarse != 0, axis=1)]
    best = _measured(search, start)
    for direction in coarse:
        moves = [replace(best, logs=best.logs + step * direction) for step in _GRID]
        tried = [_measured(search, move) for move in moves if search.done < last]
        best = min([best, *tried], key=lambda point: point.loss)
    best = _nelder_mead(search, best, coarse / 2, (last - search.done) // 2)
    for change in (1, -1):
        while best.prefill_interval is not None and best.prefill_interval + change >= 1 and search.done < last:
            neighbour = _measured(search, replace(best, prefill_interval=best.prefill_interval + change))
            if neighbour.loss >= best.loss:
                break
            best = neighbour
    while last - search.done > len(fine) + 1:
        best = _nelder_mead(search, best, fine, last - search.done)
        fine = fine / -2  # the loss has steps: a simplex that is stuck needs nearer neighbours on the other side
    return best


_COARSE: Final = np.array([[0.0, 0.0, 0.0, 0.0, -0.025], [0.03, 0.0, 0.03, 0.03, 0.0], [0.0, 0.1, 0.0, 0.0, 0.0]])
_GRID: Final = (-3, -2, -1, 1, 2, 3)
_FINE: Final = np.diag([0.02, 0.05, 0.05, 0.05, -0.01])
"""Directions and first steps in logarithms, a row each: KV; decode speed; prefill speed."""


def _measured(search: _Search, point: _Point) -> _Point:
    return replace(point, loss=search.loss(point.values))


def _nelder_mead(search: _Search, start: _Point, steps: Floats, budget: int) -> _Point:
    """At most ``budget`` simulations from ``start`` along ``steps``; the best point tried, or ``start`` if better."""
    best = start

    def loss(moved: Floats) -> float:
        nonlocal best
        point = _measured(search, replace(start, logs=start.logs + moved @ steps))
        if point.loss < best.loss:
            best = point
        return point.loss

    size = len(steps)
    simplex = np.vstack([np.zeros(size), np.eye(size)])
    options = {"maxfev": budget, "initial_simplex": simplex, "xatol": 1e-2, "fatol": 1e-4}
    if budget > 0:
        minimize(loss, np.zeros(size), method="Nelder-Mead", options=options)
    return best
