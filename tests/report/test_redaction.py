"""No tenant's name in a redacted report: page, document, tickets, whatever the name is and wherever it stood."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import polars as pl
import pytest

from fairreplay.report.html import render
from fairreplay.report.redaction import Redaction
from fairreplay.report.schema import Document
from fairreplay.report.ticket import ticket
from fairreplay.report.write import encode
from fairreplay.store.store import Store
from fairreplay.trace.pseudonyms import Pseudonyms
from tests.report import scene
from tests.report.documents import Page, unpacked

KEY = Redaction(Pseudonyms(b"0123456789abcdef"))
NAMES = ("Acme Corp", "globex-eu", "x", '</b>"=1+1')
"""One that the file is called after, one that a model and a type repeat, one that is any letter, a hostile one."""


@pytest.fixture(scope="module")
def settings() -> str:
    text = scene.SETTINGS
    for old, new in zip(scene.TENANTS, NAMES, strict=True):
        text = text.replace(f"[tenants.{old}]", f"[tenants.{json.dumps(new)}]")
    return text


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, settings: str) -> Store:
    rows = scene.log(NAMES).with_columns(
        pl.lit("llama-ACME CORP-lora").alias("model"),
        pl.when(pl.col("type") == "chat").then(pl.lit("globex-eu-chat")).otherwise("type").alias("type"),
        ("Acme Corp/" + pl.col("request_id")).alias("request_id"),
    )
    return scene.stored(tmp_path_factory.mktemp("redaction"), rows, scene.config(settings), "acme corp, june.jsonl")


@pytest.fixture(scope="module")
def plain(store: Store, settings: str) -> Document:
    return scene.document(store, scene.config(settings))


@pytest.fixture(scope="module")
def redacted(store: Store, settings: str, plain: Document) -> Document:
    return scene.document(store, scene.config(settings), previous=plain, redaction=KEY)


def test_the_plain_report_holds_the_names(plain: Document) -> None:
    content = encode(plain).decode()
    assert plain["redacted"] is None
    assert all(json.dumps(name)[1:-1] in content for name in NAMES)
    assert "acme corp, june.jsonl" in content
    assert "Acme Corp/" in content


def test_no_name_is_left_anywhere(redacted: Document) -> None:
    html = render(redacted)
    page = Page(html)
    texts = [
        html,
        page.text,
        encode(redacted).decode(),
        *(ticket(episode) for episode in redacted["episodes"]),
        *(unpacked(html, part).decode() for part in ("figures", "names-data", "document")),
    ]
    for text in texts:
        for name in ("acme corp", "globex-eu", "</b>", "=1+1"):
            assert name not in text.lower()
    # "x" is a letter of many words: no cell, label or item of the document is that name
    assert not any(row and row[0] == "x" for row in page.rows)
    assert "x" not in list(strings(redacted))


def strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from strings(part)


def test_names_are_replaced_alike_everywhere(plain: Document, redacted: Document) -> None:
    assert [row["tenant"] for row in redacted["tenants"]] == [KEY.name(row["tenant"]) for row in plain["tenants"]]
    (before,), (after,) = plain["episodes"], redacted["episodes"]
    assert after["tenants"] == sorted(map(KEY.name, before["tenants"]))
    assert after["reason"] is not None
    assert after["reason"].startswith(f"Tenant {KEY.name('Acme Corp')} sent 9.3x its usual requests")
    assert f'"{KEY.name("Acme Corp")}" = ' in json.dumps(after["verdict"]).replace('\\"', '"')
    assert redacted["period"]["models"] == [f"llama-{KEY.name('Acme Corp')}-lora"]
    assert {row["type"] for row in redacted["types"]} == {"completion", f"{KEY.name('globex-eu')}-chat"}
    assert redacted["data_quality"]["sources"][0]["file"] == f"{KEY.name('Acme Corp')}, june.jsonl"
    keys = [row["key"] for row in redacted["method"]["settings"]]
    assert f"tenants.{KEY.name('Acme Corp')}.weight" in keys
    assert redacted["redacted"] == {"what": "tenant", "key": KEY.pseudonyms.fingerprint()}
    assert "stand under pseudonyms" in Page(render(redacted)).text


def test_the_figures_are_the_same(plain: Document, redacted: Document) -> None:
    for key in ("value", "level", "minutes_red"):
        assert [figure[key] for group in plain["verdict"]["groups"] for figure in group["figures"]] == [  # type: ignore[literal-required]
            figure[key]  # type: ignore[literal-required]
            for group in redacted["verdict"]["groups"]
            for figure in group["figures"]
        ]
    assert [row["shares"] for row in plain["episodes"]] == [row["shares"] for row in redacted["episodes"]]
    assert [row["inversions"] for row in plain["differences"]] == [row["inversions"] for row in redacted["differences"]]


def test_another_key_gives_other_names() -> None:
    assert KEY.name("acme") != Redaction(Pseudonyms(b"fedcba9876543210")).name("acme")
    assert KEY.name("default") == "default"


def test_text_is_searched_for_names() -> None:
    known = KEY.knowing(["acme", "ab", "12", ""])
    acme, ab = KEY.name("acme"), KEY.name("ab")
    assert known.text("ACME-lora, xacmex") == f"{acme}-lora, x{acme}x"
    assert known.text("/logs/ab/abc.jsonl") == f"/logs/{ab}/abc.jsonl"  # a short name only as a word
    assert known.prose("12 rows of ab and acme") == f"12 rows of ab and {acme}"
    assert known.prose("ab") == ab


def test_the_key_is_not_shown() -> None:
    assert "0123456789abcdef" not in repr(KEY)
