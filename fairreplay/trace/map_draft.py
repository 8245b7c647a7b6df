"""A first mapping file for a log, guessed from the names and forms in its first records, for a person to check.

No value of the log gets into it: values may be prompts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC
from pathlib import Path
from typing import Final, NamedTuple

from fairreplay.trace.containers import Content, inspect, sample_within
from fairreplay.trace.fields import Format, Sample
from fairreplay.trace.map_reader import Walk, all_paths, joined_path
from fairreplay.trace.nested import number_of
from fairreplay.trace.schema import TIME_COLUMNS
from fairreplay.trace.values import Ticks, UnparsableError, magnitude, parse_wall

_NAMES: Final[Mapping[str, str]] = {
    "request_id": "request_id x_request_id req_id requestid id",
    "arrived_at": "arrived_at arrival_time request_received_ts request_received start_time starttime request_start_time"
    " launch_time req_time received_at created_at created timestamp ts time datetime date",
    "scheduled_at": "scheduled_at scheduled_time scheduled_ts queue_time queue queued wait_time",
    "first_token_at": "first_token_at first_token_time first_token_ts completion_start_time ttft time_to_first_token"
    " first_token_latency",
    "finished_at": "finished_at finish_time end_time endtime completed_at last_token_ts e2e_latency e2e total_time"
    " latency duration request_latency elapsed elapsed_time",
    "prompt_tokens": "prompt_tokens input_tokens prompt_len input_length input_len input_toks tokens_in",
    "output_tokens": "output_tokens completion_tokens generated_tokens generation_tokens output_len output_length"
    " output_toks tokens_out",
    "cached_tokens": "cached_tokens cache_read_input_tokens cached_input_tokens",
    "tenant": "tenant tenant_id team team_id customer org organization_id user user_id adapter_dir",
    "model": "model model_name model_id model_group",
    "replica": "replica pod instance upstream_host worker worker_id",
    "priority": "priority",
    "session_id": "session_id conversation_id chat_id",
    "prefix_ids": "prefix_ids hash_ids",
}
"""Canonical column -> names of it in other logs, the likeliest first."""
_STATUS_NAMES: Final = ("status_code", "http_status", "response_code", "code", "status")
_NEEDED: Final = ("arrived_at", "prompt_tokens", "output_tokens")
_UNITS: Final = (("ms", "ms"), ("us", "us"), ("ns", "ns"), ("s", "s"), ("sec", "s"), ("seconds", "s"))
_UNIT_ENDING: Final = re.compile(r"_(?:ms|us|ns|s|sec|seconds|milliseconds)$")
_EPOCHS: Final = ((10**8, 10**11, "s"), (10**11, 10**14, "ms"), (10**14, 10**17, "us"), (10**17, 10**20, "ns"))
"""From 1973 to 5138 in each unit."""
_DELIMITERS: Final = (";", "\t", "|")


class _Place(NamedTuple):
    path: str
    name: str
    """Last key, in snake case."""
    value: object


def draft(path: Path) -> str:
    """A mapping file for the log at ``path``: it loads as it stands wherever arrival and token counts were found.

    Raises:
        BadInputError: the log cannot be read.
    """
    content, delimiter = _inspected(path)
    sample, records = _rows(content)
    places = [
        _Place(joined_path(parts), _snake(parts[-1]), value)
        for parts, value in all_paths(sample.records)
        if not isinstance(value, dict)
    ] or [_Place(joined_path((name,)), _snake(name), None) for name in sample.columns]
    kind = "json" if records or sample.container == "document" else sample.container
    lines = [
        "# A draft from the names in the first records: check every line, the units and clocks first.",
        "version = 1",
        f"name = {_quoted('my-' + (_snake(path.name.split('.')[0]) or 'log'))}",
        "",
        "[read]",
        f'kind = "{kind}"',
        *([f"records = {_quoted(records)}"] if records else []),
        *(["header = false"] if sample.columns[:1] == ("c0",) else []),
        *([f"delimiter = {_quoted(delimiter)}"] if delimiter != "," else []),
        "",
    ]
    taken: set[str] = set()
    clocks, columns = _columns(places, taken)
    lines += [*clocks, "[columns]", *columns, "", *_status(places, taken)]
    rest = [_quoted(place.path) for place in places if place.path not in taken]
    if rest:
        lines += ["# Not used: " + ", ".join(rest[:100]) + (f" and {len(rest) - 100} more" if len(rest) > 100 else "")]
    return "\n".join(lines).rstrip("\n") + "\n"


def _inspected(path: Path) -> tuple[Content, str]:
    """The log, and for a CSV what parts its cells."""
    content = inspect(path)
    if content.sample.container != "csv" or len(content.sample.columns) > 1:
        return content, ","
    name = content.sample.columns[0]
    delimiter = max(_DELIMITERS, key=name.count)
    if delimiter not in name:
        return content, ","
    return inspect(path, Format("draft", ("csv",), (), {}, delimiter=delimiter)), delimiter


def _rows(content: Content) -> tuple[Sample, str | None]:
    """The records of a log, and where they stand in it if it is one object that holds them."""
    sample = content.sample
    if len(sample.records) != 1:
        return sample, None
    lists = {
        parts: value
        for parts, value in all_paths(sample.records)
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value)
    }
    if not lists:
        return sample, None
    longest = max(lists, key=lambda parts: len(lists[parts]))

    def explode(record: dict[str, object]) -> list[object] | None:
        found = Walk(record).get(longest)
        return found if isinstance(found, list) else None

    return sample_within(sample, Format("draft", (sample.container,), (), {}, explode=explode)), joined_path(longest)


def _snake(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()).strip("_")


def _find(places: Sequence[_Place], names: Sequence[str]) -> _Place | None:
    """The place of the likeliest name; of several, the one nearest to the top."""
    for name in names:
        fitting = [place for place in places if place.name == name or _UNIT_ENDING.sub("", place.name) == name]
        if fitting:
            return min(fitting, key=lambda place: place.path.count("."))
    return None


def _columns(places: Sequence[_Place], taken: set[str]) -> tuple[list[str], list[str]]:
    """The [clock] tables and the lines of [columns]; paths that they use go into ``taken``."""
    clocks: dict[str, list[str]] = {}
    lines = []
    for column, names in _NAMES.items():
        place = _find([item for item in places if item.path not in taken], names.split())
        if place is None:
            if column in _NEEDED:
                lines.append(f'# {column} = "..."    # needed, and not found')
            continue
        taken.add(place.path)
        lines.append(_line(column, place, clocks))
    tables = [line for name, body in clocks.items() for line in (f"[clock.{name}]", *body, "")]
    return tables, lines


def _line(column: str, place: _Place, clocks: dict[str, list[str]]) -> str:
    path = _quoted(place.path)
    if column not in TIME_COLUMNS:
        return f"{column} = {path}"
    clock = _clock(place, arrival=column == "arrived_at")
    if clock is None and place.name.endswith(("_ts", "_at")):
        mark = f'# {column} = {{ column = {path}, clock = "...", minus = "...", after = "arrived_at" }}'
        return f"{mark}    # a mark of another clock"
    if clock is None:
        unit, sure = _unit(place)
        line = f'{column} = {{ column = {path}, unit = "{unit}", after = "arrived_at" }}'
        return line if sure else f"{line}    # the unit is a guess"
    name, body = clock
    clocks[name] = body
    return f'{column} = {{ column = {path}, clock = "{name}" }}'


def _clock(place: _Place, *, arrival: bool) -> tuple[str, list[str]] | None:
    """The clock that a value is of: name and table; None for a duration."""
    if isinstance(place.value, Ticks):
        return "wall", ['kind = "wall"']
    number = number_of(place.value)
    if number is None:
        if isinstance(place.value, str) and not _is_iso(place.value):
            wanted = '# format = "%d/%m/%Y %H:%M:%S%.f"    # needed: the times are not ISO 8601'
            return "wall", ['kind = "wall"', wanted]
        return "wall", ['kind = "wall"', '# tz = "Europe/Berlin"    # of times without zone; --tz if left out']
    unit = next((unit for low, high, unit in _EPOCHS if low <= magnitude(number) < high), None)
    if unit is not None:
        return f"epoch_{unit}", ['kind = "epoch"', f'unit = "{unit}"']
    if not arrival:
        return None
    unit, sure = _unit(place)
    return "log", ['kind = "relative"', f'unit = "{unit}"' + ("" if sure else "    # the unit is a guess")]


def _is_iso(text: str) -> bool:
    try:
        parse_wall(text, UTC)
    except UnparsableError:
        return False
    return True


def _unit(place: _Place) -> tuple[str, bool]:
    """The unit that a name ends in, and whether it does."""
    if place.name.endswith("milliseconds"):
        return "ms", True
    for ending, unit in _UNITS:
        if place.name.endswith("_" + ending):
            return unit, True
    return "s", False


def _status(places: Sequence[_Place], taken: set[str]) -> list[str]:
    place = _find([item for item in places if item.path not in taken], _STATUS_NAMES)
    if place is None:
        return []
    taken.add(place.path)
    codes = number_of(place.value) is not None
    known = '"200" = "ok", "429" = "rejected", "503" = "rejected", "499" = "cancelled"' if codes else '"ok" = "ok"'
    return ["[status]", f"column = {_quoted(place.path)}", f"map = {{ {known} }}", 'default = "failed"', ""]


def _quoted(text: str) -> str:
    """A TOML string on one line."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
