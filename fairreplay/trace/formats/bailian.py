"""Qwen-Bailian usage traces (alibaba-edu/qwen-bailian-usagetraces-anon): mooncake's shape, in seconds, with chats.

A session is the chat that it began with, found by following ``parent_chat_id``; a child may stand before its parent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import polars as pl

from fairreplay.trace.columnwise import ByColumns, values_of
from fairreplay.trace.fields import Format, Ids, Record, Relative, Sample, Skipped, Text, Tokens
from fairreplay.trace.nested import number_of
from fairreplay.trace.values import known, whole

NEEDS = ("chat_id", "parent_chat_id", "timestamp", "input_length", "output_length")
NO_PARENT = -1


def _chat(value: object) -> int | str | None:
    """An id as a key: ``159`` and ``"159"`` are one chat."""
    if not known(value):
        return None
    number = number_of(value)
    if number is None:
        return value if isinstance(value, str) else None
    return whole(number)


def _root(chat: int | str, parents: dict[int | str, int | str]) -> int | str:
    """The chat without parent that ``chat`` goes back to; of a circle, the chat that sorts first.

    Every chat on the way is linked to it, so that all look-ups together take time linear in the chats.
    """
    way: dict[int | str, None] = {}
    at = chat
    while at in parents and at not in way:
        way[at] = None
        at = parents[at]
    if at in way:
        circle = list(way)[list(way).index(at) :]
        at = min(circle, key=lambda item: (isinstance(item, str), item))
    for member in way:
        if member == at:
            parents.pop(member)
        else:
            parents[member] = at
    return at


def _parents(records: Iterable[Record]) -> dict[int | str, int | str]:
    """Chat -> parent, as the first record of the chat says it."""
    parents: dict[int | str, int | str] = {}
    seen: set[int | str] = set()
    for record in records:
        chat, parent = _chat(record.get("chat_id")), _chat(record.get("parent_chat_id"))
        if chat is None or chat in seen:
            continue
        seen.add(chat)
        if parent is not None and parent != NO_PARENT:
            parents[chat] = parent
    return parents


def _survey(_: Sample, records: Iterable[Record]) -> Format:
    parents = _parents(records)

    def prepare(record: Record) -> Record | Skipped:
        chat = _chat(record.get("chat_id"))
        return (
            record if chat is None else record | {"request_id": record["chat_id"], "session_id": _root(chat, parents)}
        )

    def by_columns(frame: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series | None]:
        chats = frame["chat_id"] if "chat_id" in frame.columns else pl.Series([None] * frame.height, dtype=pl.String)
        keys = [_chat(value) for value in chats]
        roots = [None if chat is None else _root(chat, parents) for chat in keys]
        odd = pl.Series([chat is None for chat in keys], dtype=pl.Boolean)
        return frame.with_columns(request_id=chats, session_id=values_of(roots)), odd

    return replace(BAILIAN, prepare=prepare, by_columns=ByColumns((Text("chat_id"),), by_columns))


BAILIAN = Format(
    name="bailian",
    containers=("jsonl", "document"),
    needs=NEEDS,
    survey=_survey,
    survey_reads=("chat_id", "parent_chat_id"),
    prefix_block_tokens=16,
    reads=(
        "chat_id",
        "parent_chat_id",
    ),
    columns={
        "request_id": (Text("request_id"),),
        "session_id": (Text("session_id"),),
        "type": (Text("type"),),
        "arrived_at": (Relative("timestamp", "s"),),
        "prompt_tokens": (Tokens("input_length"),),
        "output_tokens": (Tokens("output_length"),),
        "prefix_ids": (Ids("hash_ids"),),
    },
)
