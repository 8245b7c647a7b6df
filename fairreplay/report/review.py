"""A review: ingest, replay and report in one, so that the same command again gives the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import polars as pl

from fairreplay.causes.review import configured, period_of
from fairreplay.config.model import Config
from fairreplay.errors import FairReplayError, UsageError
from fairreplay.metrics.options import MeasureOptions
from fairreplay.report.archive import State, earlier, page_name, publish, read_state, reviewed_at_s
from fairreplay.report.gather import report_document
from fairreplay.report.previous import load_previous
from fairreplay.report.provenance import config_digest
from fairreplay.report.schema import Document
from fairreplay.report.write import Written
from fairreplay.sandbox.plan import choose, policy_name
from fairreplay.sandbox.pool import workers
from fairreplay.sandbox.replay import ReplaySummary, find_replays, replay
from fairreplay.store.ingest import IngestOptions, IngestSummary, ingest
from fairreplay.store.objects import Place
from fairreplay.store.sources import STDIN, expand
from fairreplay.store.store import Store, claimed, has_store, open_store
from fairreplay.trace.read import content_id

Told = Callable[[int, int], None]
Stage = Callable[[str, str], AbstractContextManager[Told | None]]
"""(what is done, what is counted) -> whom to tell how far it is."""

GRACE_PART: Final = 100
"""A review is due a hundredth of ``--every`` early (14 days: 3 h 21 min): neither a timer's jitter nor the hour of
summer time may cost a week."""


@contextmanager
def silent(_what: str, _unit: str) -> Iterator[Told | None]:
    """A stage that nobody watches."""
    yield None


@dataclass(frozen=True)
class Review:
    """What a review did. ``replays``: those that were not in the store already; ``removed``: those of older content."""

    ingested: IngestSummary
    replays: tuple[ReplaySummary, ...]
    policies: tuple[str, ...]
    removed: tuple[str, ...]
    since: datetime | None
    until: datetime
    document: Document
    latest: Written
    kept: Written
    previous: Place | None
    """The earlier review that the report tells the difference to."""
    warnings: tuple[str, ...]


def review(
    names: Sequence[str],
    store_path: Place,
    folder: Place,
    config: Config,
    options: MeasureOptions,
    *,
    ingesting: IngestOptions | None = None,
    policies: Sequence[str] = (),
    since_last: bool = False,
    jobs: int = 1,
    engine: str = "local",
    stage: Stage = silent,
) -> Review:
    """Read ``names`` into the store, replay the period under ``configured(config, policies)``, report into ``folder``.

    The store's lock is held throughout. Replays that belong are taken as they are; those made before the store grew,
    which no command can use any more, are removed. ``since_last``: from the end of the last review on; where nothing
    arrived since then, its period again. ``engine``: where replays and counterfactuals run (``sandbox.replay``).

    Raises:
        UsageError, BadInputError, StoreError, StoreBusyError: as of the steps. The last good report stays.
    """
    chosen = configured(config, policies)
    with claimed(store_path), workers(engine):
        with stage("ingest", "rows") as told:
            ingested = ingest(names, store_path, replace(ingesting or IngestOptions(), progress=told))
        store = open_store(store_path)
        options, repeats = _since_last(store, folder, options) if since_last else (options, ())
        options = period_of(store, options)
        done = _replayed(store, config, chosen, options, jobs, engine, stage)
        until = options.until or _after_the_last(store)
        path, previous, warnings = _previous(folder, until)
        with stage("report", "episodes") as told:
            document = report_document(store, config, options, previous=previous, engine=engine, progress=told)
        state = State(options.since, until, page_name(until), store.digest(), config_digest(config))
        removed = _remove_useless(store)
        latest, kept = publish(folder, document, state)
    return Review(
        ingested=ingested,
        replays=tuple(done),
        policies=chosen,
        removed=removed,
        since=options.since,
        until=until,
        document=document,
        latest=latest,
        kept=kept,
        previous=path,
        warnings=(*repeats, *warnings),
    )


def _since_last(store: Store, folder: Place, options: MeasureOptions) -> tuple[MeasureOptions, tuple[str, ...]]:
    """The period after the last review, or that of the last one, and a word on it, where nothing arrived since."""
    last = read_state(folder)
    if last is None:
        return options, ()
    if (options.until is None or options.until > last.until) and _after_the_last(store) > last.until:
        return replace(options, since=last.until), ()
    said = f"no request arrived since the last review, to {last.until:%Y-%m-%d %H:%M} UTC: its period again"
    return replace(options, since=last.since), (said,)


def _replayed(
    store: Store,
    config: Config,
    chosen: Sequence[str],
    options: MeasureOptions,
    jobs: int,
    engine: str,
    stage: Stage,
) -> list[ReplaySummary]:
    found = find_replays(store, config, options.since, options.until)
    missing = [policy for policy in chosen if policy_name(choose(policy)) not in found]
    load = store.requests(options.since, options.until, ("status", "prompt_tokens"))
    if not missing or load.filter((pl.col("status") != "rejected") & (pl.col("prompt_tokens") > 0)).is_empty():
        return []
    del load
    with stage("replay", "requests") as told:
        return replay(store, config, missing, options.since, options.until, jobs=jobs, engine=engine, progress=told)


def _after_the_last(store: Store) -> datetime:
    """The first instant after every stored arrival.

    Raises:
        UsageError: the store holds no request.
    """
    last = _newest([segment.last_arrival for segment in store.manifest.segments])
    if last is None:
        raise UsageError(f"{store.place}: no request in the store: nothing to review")
    return last + timedelta(microseconds=1)


def _newest(arrivals: Sequence[str | None]) -> datetime | None:
    return max((datetime.fromisoformat(at).astimezone(UTC) for at in arrivals if at is not None), default=None)


def _previous(folder: Place, until: datetime) -> tuple[Place | None, Document | None, tuple[str, ...]]:
    """The latest earlier review that can be read, and what is wrong with later ones: that alone stops no review."""
    warnings: list[str] = []
    for path in earlier(folder, until):
        try:
            return path, load_previous(path), tuple(warnings)
        except FairReplayError as error:
            warnings.append(f"not compared with: {error}")
    return None, None, tuple(warnings)


def _remove_useless(store: Store) -> tuple[str, ...]:
    """Take replays of older content away: the store has grown since, and no command would use them."""
    old = [name for name in store.replay_names() if store.replay_meta(name).get("store_digest") != store.digest()]
    for name in old:
        store.remove_replay(name)
    return tuple(old)


# ---- when ----


@dataclass(frozen=True)
class Waiting:
    """Why no review is due."""

    last_until: datetime
    reviewed_at: datetime
    wall: timedelta
    """Time on the clock since the last review."""
    trace: timedelta
    """From its end to the last known arrival."""


def waiting(
    folder: Place,
    every: timedelta,
    now_s: float,
    names: Sequence[str],
    store_path: Place,
    ingesting: IngestOptions | None = None,
) -> Waiting | None:
    """Null where a review is due: there was none, or ``every`` has passed since, on the clock or in the trace.

    ``now_s`` is the clock, in seconds since the epoch. Of logs that the store does not hold yet those in files are read
    to see how far they go; nothing is stored.
    """
    last = read_state(folder)
    if last is None or not has_store(store_path):
        return None
    enough = every - every / GRACE_PART
    then_s = reviewed_at_s(folder)
    wall = timedelta(seconds=now_s - then_s)
    if wall >= enough:
        return None
    trace = _newest_arrival(names, store_path, ingesting or IngestOptions(), last.until) - last.until
    if trace >= enough:
        return None
    return Waiting(last.until, datetime.fromtimestamp(then_s, UTC), wall, max(trace, timedelta(0)))


def _newest_arrival(names: Sequence[str], store_path: Place, ingesting: IngestOptions, last: datetime) -> datetime:
    store = open_store(store_path)
    arrivals: list[str | None] = [segment.last_arrival for segment in store.manifest.segments]
    try:
        unknown = [
            source.shown
            for source in expand([name for name in names if name != STDIN and "://" not in name], store_path)
            if isinstance(source.path, Path) and store.manifest.segment(content_id(source.path)) is None
        ]
        if unknown:
            arrivals.append(ingest(unknown, store_path, replace(ingesting, dry_run=True)).last_arrival)
    except (FairReplayError, OSError):
        pass  # said when the review is made
    return _newest(arrivals) or last
