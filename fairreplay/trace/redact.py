"""No prompt and no answer is ever stored: what is kept of a rejected record is what a request is made of.

A log may carry prompts under any key, so a text is kept only for a reason: the format reads that key, the key is the
name of an id, a time or a state, or the text is a number, an instant or an id by its form. Everything else becomes a
mark that says how long it was. Numbers, and keys that look like names, always stay.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Collection
from decimal import Decimal
from typing import Final

from fairreplay.trace.fields import Record

TEXTLESS: Final = frozenset(
    {
        "azure",
        "bailian",
        "burstgpt",
        "envoy-ai-gateway",
        "mooncake",
        "ragpulse",
        "trtllm",
        "vidur",
        "vllm-requests",
        "vtc",
    }
)
"""Formats whose records have no place for a prompt: a line of theirs that cannot be read is kept as it is."""

DEPTH_MAX: Final = 32
NAME_CHARACTERS_MAX: Final = 256
BROKEN_CHARACTERS_MAX: Final = 16
NUMBERS_MAX: Final = 8
_TEXT_WORDS: Final = frozenset(
    re.findall(
        r"\w+",
        """
        answer answers arguments body bodies caption choice choices chunk chunks completion completions content contents
        conversation delta doc document documents history html image images input inputs instruction instructions
        markdown message messages output outputs passage passages payload prompt prompts query question questions
        reasoning request response responses suffix summary system text texts thought transcript
        """,
    )
)
_NAME_WORDS: Final = frozenset(
    re.findall(
        r"\w+",
        """
        adapter address at backend clock code count date deployment duration endpoint engine event finish finished
        format group host id ids ident kind latency len length level logged mode model name org organization path phase
        pod policy precision priority provider rank reason region replica requested rid role route run schema scope
        server service session severity source span start state status stop stream team tenant tier time timestamp
        token tokens trace ts type tz unit upstream usage user uuid value version worker zone
        """,
    )
)
_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_KEY = re.compile(r"[\w.\-/:@$#\[\]]{1,64}")
_FORMS = re.compile(
    r"""
      [+-]?\d[\d_.,]*(?:[eE][+-]?\d+)?\s?(?:s|ms|us|ns|%)?              # numbers, durations
    | \d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}(?:[T ]\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?)?\s?(?:Z|UTC|[+-]\d\d:?(?:\d\d)?)?
    | [0-9a-fA-F]{8,}                                                    # hashes
    | [0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}
    | true|false|null|none|True|False|None|NaN|-?Infinity|-|
    """,
    re.VERBOSE,
)
_BETWEEN = re.compile(r"(?:[\s\d.,:{}\[\]+\-]|[eE](?=[+\-\d])|true|false|null)*")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"(\s*:)?', re.DOTALL)


def holds_text(path: str) -> bool:
    """The last key of ``path`` is one under which logs carry prompts or answers (``messages``, ``request.prompt``)."""
    return _is_text_key(path.rsplit(".", maxsplit=1)[-1])


def _is_text_key(key: str) -> bool:
    """A text word, and no word after it that makes it a count or an id (``prompt_tokens``, ``response_code``)."""
    words = [word.lower() for word in _WORDS.findall(key)]
    return bool(words) and words[-1] in _TEXT_WORDS


def _is_name_key(key: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(key)]
    return bool(words) and words[-1] in _NAME_WORDS and words[-1] not in _TEXT_WORDS


class Keeping:
    """What may be kept of the rejects of one source.

    ``reads`` are the keys that the format reads as something else than text. ``hides`` are keys whose values are never
    kept, for tenants that get pseudonyms: then a text is kept by its form only. ``removed``: rejects cut so far.
    """

    def __init__(self, format_name: str, reads: Collection[str], hides: Collection[str] | None = None) -> None:
        hidden = frozenset(hides or ())
        self._reads = frozenset(key for key in reads if not holds_text(key)) - hidden
        self._hides = hidden
        self._by_name = hides is None
        self._textless = format_name in TEXTLESS and hides is None
        self.removed = 0

    def line(self, record: Record, text: str | None, csv_line: bool = False) -> str:
        """A readable record as it is kept: its own line if nothing had to go."""
        kept = {self._kept_key(key): self._kept(key, value, 0) for key, value in record.items()}
        if kept == record:
            return text if text is not None else _as_json(record)
        self.removed += 1
        if not csv_line:
            return _as_json(kept)
        cells = io.StringIO()
        csv.writer(cells, lineterminator="").writerow(kept.values())
        return cells.getvalue()

    def broken(self, text: str) -> str:
        """A line that cannot be read, as it is kept: whole where no prompt can be in it, else its skeleton."""
        if self._textless:
            return text
        stripped = text.strip()
        if len(stripped) <= BROKEN_CHARACTERS_MAX and not re.search(r"\s", stripped) and self._by_name:
            return text
        self.removed += 1
        if stripped[:1] not in ("{", "[") or not self._by_name or '"' not in stripped:
            return _mark(text)
        return self._skeleton(stripped)

    def value(self, column: str | None, value: str | None) -> str | None:
        """The value that a reject names, as it is kept."""
        if value is None or column is None:
            return value
        harmless = bool(_FORMS.fullmatch(value)) or (self._by_name and _KEY.fullmatch(value) is not None)
        if column in self._hides or ((holds_text(column) or not self._by_name) and not harmless):
            return _mark(value)
        return value

    def _skeleton(self, text: str) -> str:
        """JSON that breaks off or is spoilt: strings stay if they are keys, or stand after a key that keeps them."""
        pieces: list[str] = []
        at, key = 0, ""
        for found in _STRING.finditer(text):
            between = text[at : found.start()]
            pieces.append(between if _BETWEEN.fullmatch(between) else " … ")
            body = found.group()
            if found.group(1):
                key = body[1 : body.rindex('"')]
                pieces.append(body if _KEY.fullmatch(key) else '"…":')
            else:
                pieces.append(f'"{self._kept_string(key, body[1:-1])}"')
            at = found.end()
        between, quote, begun = text[at:].partition('"')
        pieces.append(between if _BETWEEN.fullmatch(between) else " … ")
        return "".join(pieces) + quote + (self._kept_string("", begun) if begun else "")

    def _kept_string(self, key: str, inner: str) -> str:
        """The inside of a quoted string in a broken line; one that is JSON itself, broken or not, is cut likewise."""
        if self._may_stay(key, inner):
            return inner
        opened = _opened(f'"{inner}"')
        if isinstance(opened, str) and opened[:1] in ("{", "["):
            cut = self._skeleton(opened)
            return inner if cut == opened else json.dumps(cut, ensure_ascii=False)[1:-1]
        return _mark(inner)

    def _kept_key(self, key: str) -> str:
        return key if key in self._reads or _KEY.fullmatch(key) else _mark(key)

    def _kept(self, key: str, value: object, depth: int) -> object:
        if isinstance(value, dict):
            if depth > DEPTH_MAX:
                return _mark(str(len(value)))
            return {self._kept_key(inner): self._kept(inner, item, depth + 1) for inner, item in value.items()}
        if isinstance(value, list):
            if depth > DEPTH_MAX:
                return _mark(str(len(value)))
            if (
                len(value) > NUMBERS_MAX
                and key not in self._reads
                and not any(isinstance(i, dict | list) for i in value)
            ):
                return [f"[removed: {len(value)} items]"]  # a prompt may stand there as token ids
            return [self._kept(key, item, depth + 1) for item in value]
        if not isinstance(value, str) or self._may_stay(key, value):
            return value if key not in self._hides else None
        if value[:1] in ("{", "[") and self._by_name:
            opened = _opened(value)
            if opened is not None:
                return _as_json(self._kept(key, opened, depth + 1))
        return _mark(value)

    def _may_stay(self, key: str, text: str) -> bool:
        if key in self._hides or len(text) > NAME_CHARACTERS_MAX:
            return False
        if _FORMS.fullmatch(text):
            return True
        return self._by_name and (key in self._reads or (_is_name_key(key) and _KEY.fullmatch(text) is not None))


def _mark(text: str) -> str:
    return f"[removed: {len(text)} characters]"


def _opened(text: str) -> object:
    try:
        value: object = json.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError):
        return None
    return value


def _as_json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
