"""The Markdown of an episode: what it says, and that no name gets out of its place."""

from __future__ import annotations

import re
from dataclasses import replace

import polars as pl
import pytest

from fairreplay.causes.diagnose import diagnose, with_verdicts
from fairreplay.causes.episodes import Episode
from fairreplay.report.document import episode_row
from fairreplay.report.ticket import code, escaped, fenced, ticket
from tests.causes.scenes import asked, config, found, served
from tests.report.documents import HOSTILE


@pytest.fixture(scope="module")
def log() -> pl.DataFrame:
    calm = [{"first": 0, "last": 30, "rate": 40, "tenant": tenant} for tenant in "abc"]
    return served(asked(*calm, {"first": 20, "last": 25, "rate": 300, "tenant": "c"}), config())


def told(log: pl.DataFrame, recommend: bool = True) -> Episode:
    episodes, measured, options = found(log, config())
    verdicts = diagnose(log, config(), episodes, options, measured=measured, recommend=recommend)
    return with_verdicts(episodes, verdicts)[0]


def episode_markdown(episode: Episode) -> str:
    """The ticket of what the document holds of an episode."""
    return ticket(episode_row(episode, {name: [episode.metrics[name]] for name in ("scr", "jfi", "tfr")}))


def test_the_ticket_of_a_burst(log: pl.DataFrame) -> None:
    text = episode_markdown(told(log))
    assert text.startswith("# Episode ep-")
    assert "2026-01-01 10:20 – 10:30 UTC, 10 windows, 10 of them degraded." in text
    assert r"**Tenant c sent 8\.5x its usual requests from 10\:20 to 10\:25\; without it SCR" in text
    assert "## Cause: burst (confidence high)" in text
    assert "| SCR | burst | 1.00 | 0.00 | 0.00 |" in text
    assert "| burst | yes | 8.50 | 2.00 | 1.00 |" in text
    assert "| (nothing: the baseline) | 0.00 |" in text
    assert "Against burst: removes " in text
    assert '```\n# at the gateway: requests a minute\n"c" = 80\n```' in text
    assert text.endswith("report.json holds the inputs of every replay.\n")


def test_an_episode_without_a_verdict(log: pl.DataFrame) -> None:
    text = episode_markdown(replace(told(log, recommend=False), verdict=None))
    assert "## " not in text


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_tenants_stay_names(log: pl.DataFrame, name: str) -> None:
    renamed = log.with_columns(pl.col("tenant").replace({"c": name}))
    text = episode_markdown(told(renamed))
    blocks = re.sub(r"^(`{3,})$.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", blocks)
    assert not re.search(r"<|&(?!lt;|gt;|amp;|#8288;)", outside)
    assert not re.search(r"\]\(|https?:|\x1b|\u202e|\u2028", outside)
    lines = outside.splitlines()
    assert all(line.endswith(" |") for line in lines if line.startswith("| "))
    assert all(re.match(r"#{1,3} [A-Z]", line) for line in lines if line.startswith("#"))
    assert sum(line.startswith("# ") for line in lines) == 1
    assert max(map(len, lines)) < 2000


def test_code_spans_hold_backticks_and_bars() -> None:
    assert code("plain") == "`plain`"
    assert code("a`b") == "``a`b``"
    assert code("`a``") == "``` `a`` ```"
    assert code("a|b\nc") == r"`a\|b\u000ac`"
    assert code("") == '`""`'


def test_text_is_escaped() -> None:
    assert escaped("a*b_[c](d)") == r"a\*b\_\[c\]\(d\)"
    assert escaped("<b>&@all") == r"&lt;b&gt;&amp;\@&#8288;all"
    assert escaped("1. x\n# y") == r"1\. x\u000a\# y".replace(r"\u000a", r"\\u000a")


def test_a_fence_is_longer_than_what_it_holds() -> None:
    assert fenced("a\n```\nb") == "````\na\n```\nb\n````"
