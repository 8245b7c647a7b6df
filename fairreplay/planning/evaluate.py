"""How often the causes room is right: a suite of labelled incidents, diagnosed one by one, held against the oracle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from multiprocessing import get_context
from typing import Any, Final

from fairreplay.causes.diagnose import diagnose
from fairreplay.causes.episodes import METRICS, Episode, episodes
from fairreplay.causes.verdict import CAUSES, Verdict
from fairreplay.config.load import parse_config
from fairreplay.config.model import STEP_TIME_KEYS, Config, StepTime
from fairreplay.errors import UsageError
from fairreplay.metrics.measure import measure
from fairreplay.metrics.options import measure_options
from fairreplay.planning.oracle import MATTERS, Truth, truths
from fairreplay.planning.suite import Case, Family, case
from fairreplay.planning.synth import Synthesis, synthesise

NOTHING: Final = "none"
"""No episode, or none that has a deficit on the metric."""
INCIDENTS_MAX: Final = 100_000
ERROR_MAX: Final = 0.9

GOALS: Final[dict[str, float]] = {"scr": 0.95, "jfi": 0.95, "tfr": 0.85, "pairs": 0.8, "periods": 0.98}
"""Parts that should be right: the cause of each metric in single incidents; pairs with both causes named; healthy and
quiet periods in which no cause but ``low_demand`` is named."""


@dataclass(frozen=True)
class Answer:
    """What was said about one case, beside the truth."""

    number: int
    family: Family
    name: str
    injected: tuple[str, ...]
    """Causes of the incidents themselves, without what only makes contention for them."""
    present: tuple[str, ...]
    """Every cause that some part of the injection is."""
    truth: dict[str, Truth]
    """By metric; only those that were hit."""
    named: dict[str, str]
    """By metric: the primary cause, of the overlapping episode with the largest deficit; else ``NOTHING``."""
    said: tuple[str, ...]
    """Every cause named in an episode that overlaps the incident, primary or further, of a metric or the whole."""
    before: tuple[str, ...]
    """Causes named in episodes that ended before the incident began: all false."""
    delay_s: float | None
    """From the start of the injection to the end of the first degraded window; null if there is none."""
    victims_p99_ms: tuple[float | None, float | None] | None
    """Of a noisy neighbour's victims: without the flood, with it."""


def evaluate(
    seed: int,
    incidents: int,
    sandbox_error: float = 0.0,
    jobs: int = 1,
    progress: Callable[[int], None] | None = None,
) -> list[Answer]:
    """Make the suite of ``seed``, diagnose each case, and say what came out, in the order of the suite.

    Args:
        sandbox_error: part by which the step times of the judge's config are off, above or below, drawn by case.
        jobs: processes; the answers do not depend on it.
        progress: called with the number of cases done.

    Raises:
        UsageError: a number outside its range.
    """
    if not 1 <= incidents <= INCIDENTS_MAX:
        raise UsageError(f"--incidents {incidents}: must be 1 to {INCIDENTS_MAX}")
    if not 0 <= sandbox_error <= ERROR_MAX:
        raise UsageError(f"--sandbox-error {sandbox_error:g}: must be 0 to {ERROR_MAX:g}, such as 0.2")
    if jobs < 1:
        raise UsageError(f"--jobs {jobs}: must be at least 1")
    work = partial(answer, seed, sandbox_error)
    # spawned, because a forked process inherits the locks of threads that it does not have
    pool = ProcessPoolExecutor(min(jobs, incidents), get_context("spawn")) if min(jobs, incidents) > 1 else None
    found = []
    with pool or nullcontext():
        done: Iterable[Answer] = pool.map(work, range(incidents)) if pool else map(work, range(incidents))
        for one in done:
            found.append(one)
            if progress is not None:
                progress(len(found))
    return found


def answer(seed: int, sandbox_error: float, number: int) -> Answer:
    """Make, diagnose and judge the case ``number`` of the suite ``seed``."""
    one = case(seed, number)
    made = synthesise(one.scenario)
    config = parse_config(made.config, "of the synthetic trace")
    judged_by = with_step_times(config, 1 + one.sign * sandbox_error)
    options = measure_options(judged_by)
    measured = measure(made.trace, judged_by, options, "logged")
    found = episodes(measured, made.trace)
    verdicts = diagnose(made.trace, judged_by, found, options, measured=measured, recommend=False)
    truth = truths(made.trace, config, made.labels) if one.family in ("single", "pair") else {}
    start = datetime.fromisoformat(made.labels["incidents"][0]["start"])
    delays = [
        (end - start).total_seconds() for end in measured.windows.filter("degraded")["end"].to_list() if end > start
    ]
    return _answer(one, made, truth, found, verdicts, start, min(delays, default=None))


def _answer(
    one: Case,
    made: Synthesis,
    truth: dict[str, Truth],
    found: Sequence[Episode],
    verdicts: Sequence[Verdict],
    start: datetime,
    delay_s: float | None,
) -> Answer:
    during = [verdict for episode, verdict in zip(found, verdicts, strict=True) if episode.end > start]
    before = [verdict for episode, verdict in zip(found, verdicts, strict=True) if episode.end <= start]
    labels = made.labels["incidents"]
    victims = next((label["victims"] for label in labels if "victims" in label), None)
    return Answer(
        number=one.number,
        family=one.family,
        name=one.name,
        injected=tuple(label["cause"] for label in labels if label["cause"]),
        present=tuple(sorted({cause for label in labels for cause in label["injection"]["causes"].values()})),
        truth=truth,
        named={metric: named(metric, during) for metric in METRICS},
        said=said(during),
        before=said(before),
        delay_s=delay_s,
        victims_p99_ms=None if victims is None else (victims["p99_ttft_ms_without"], victims["p99_ttft_ms"]),
    )


def named(metric: str, verdicts: Sequence[Verdict]) -> str:
    """The cause of a metric: what the verdict with the largest deficit on it says; ``NOTHING`` if none has one."""
    about = [verdict.by_metric[metric] for verdict in verdicts if metric in verdict.by_metric]
    return max(about, key=lambda verdict: verdict.logged_deficit).cause if about else NOTHING


def said(verdicts: Sequence[Verdict]) -> tuple[str, ...]:
    """Every cause that the verdicts name, by name; what is no cause (``unexplained``, ``low_demand``) left out."""
    all_named: set[str] = set()
    for verdict in verdicts:
        all_named |= {verdict.cause, *verdict.further}
        for part in verdict.by_metric.values():
            all_named |= {part.cause, *part.further}
    return tuple(sorted(all_named & set(CAUSES)))


def with_step_times(config: Config, factor: float) -> Config:
    """``config`` with every step time multiplied."""
    if factor == 1 or config.cluster.step_time is None:
        return config
    given = config.cluster.step_time
    times = StepTime(**{name: getattr(given, name) * factor for name in STEP_TIME_KEYS})
    return config.model_copy(update={"cluster": config.cluster.model_copy(update={"step_time": times})})


# ---- figures ----


def figures(answers: Sequence[Answer]) -> dict[str, Any]:
    """The confusion matrices and all rates, as JSON holds them; a rate of nothing is null."""
    singles = [answer for answer in answers if answer.family == "single"]
    hit = {metric: [answer for answer in singles if metric in answer.truth] for metric in METRICS}
    pairs = [answer for answer in answers if is_judged_pair(answer)]
    both = [answer for answer in pairs if set(answer.injected) <= set(answer.said)]
    periods = {
        "healthy": [answer.said for answer in answers if answer.family == "healthy"],
        "quiet": [answer.said for answer in answers if answer.family == "quiet"],
        "before incidents": [answer.before for answer in answers],
    }
    calm = [*periods["healthy"], *periods["quiet"]]
    hurt = [answer for answer in answers if answer.truth]
    delays = sorted(answer.delay_s for answer in hurt if answer.delay_s is not None)
    extra = [set(answer.said) - set(answer.present) for answer in hurt]
    floods = [answer.victims_p99_ms for answer in answers if answer.victims_p99_ms is not None]
    growth = sorted(during / without for without, during in floods if without and during)
    return {
        "families": dict(sorted(Counter(answer.family for answer in answers).items())),
        "confusion": {metric: confusion(metric, hit[metric]) for metric in METRICS},
        "top1": {
            metric: _rate(sum(is_right(metric, answer) for answer in hit[metric]), len(hit[metric]))
            for metric in METRICS
        },
        "pairs": _rate(len(both), len(pairs)),
        "periods": _rate(sum(not causes for causes in calm), len(calm)),
        "false_causes": {
            name: {"periods": len(of), "with_a_false_cause": sum(bool(causes) for causes in of)}
            for name, of in periods.items()
        },
        "extra_causes": {"incidents": len(hurt), "causes": sum(map(len, extra))},
        "delay_s": {
            "incidents": len(hurt),
            "missed": len(hurt) - len(delays),
            "p50": _nearest_rank(delays, 50),
            "p90": _nearest_rank(delays, 90),
            "max": delays[-1] if delays else None,
        },
        "victims_p99_growth": {"floods": len(floods), "p50": _nearest_rank(growth, 50)},
    }


def is_right(metric: str, answer: Answer) -> bool:
    """Whether the cause named for a metric that was hit is a right one."""
    return answer.named[metric] in answer.truth[metric].right


def is_judged_pair(answer: Answer) -> bool:
    """Whether both causes of a pair matter to some metric."""
    parts = [truth.parts for truth in answer.truth.values()]
    return (
        answer.family == "pair"
        and len(set(answer.injected)) == 2
        and all(any(of.get(cause, 0.0) >= MATTERS for of in parts) for cause in answer.injected)
    )


def confusion(metric: str, answers: Sequence[Answer]) -> dict[str, dict[str, int]]:
    """True cause -> named cause -> incidents. Where several causes are right and one of them was named, it is the true
    one; else the likeliest is."""
    cells: dict[str, Counter[str]] = {}
    for answer in answers:
        right = answer.truth[metric].right
        true = answer.named[metric] if answer.named[metric] in right else right[0]
        cells.setdefault(true, Counter())[answer.named[metric]] += 1
    return {true: dict(sorted(cells[true].items())) for true in sorted(cells)}


def _rate(right: int, of: int) -> dict[str, Any]:
    return {"right": right, "of": of, "rate": right / of if of else None}


def _nearest_rank(ordered: Sequence[float], q: int) -> float | None:
    return ordered[(q * len(ordered) + 99) // 100 - 1] if ordered else None
