"""What a config takes from a preset, in sentences for the reader of a report."""

from __future__ import annotations

from collections.abc import Iterator

from fairreplay.config.engines import unsettled
from fairreplay.config.model import Config, StepTime
from fairreplay.config.step_times import preset


def assumptions(config: Config) -> list[str]:
    """Where step times of a preset come from, and what is not known of the engine's release; each once."""
    said = [
        f"step times {name!r} of {where}: {preset(name).source}"
        for where, times in _step_times(config)
        if times is not None and (name := times.preset) is not None
    ]
    for table in (config.cluster, *config.models.values()):
        if table.engine is not None and (rules := unsettled(table.engine)):
            said.append(
                f"{table.engine}: its sources were not read; taken to decide as the one before that was, without "
                + "; ".join(rules)
            )
    return list(dict.fromkeys(said))


def _step_times(config: Config) -> Iterator[tuple[str, StepTime | None]]:
    for where, table in {"[cluster]": config.cluster, **{f"[models.{n}]": t for n, t in config.models.items()}}.items():
        yield where, table.step_time
        for change in table.changes:
            yield f"{where} from {change.at:%Y-%m-%dT%H:%M:%SZ} on", change.step_time
