"""The capacity section: from ``capacity -o`` to the page, with hostile names, redacted, refused where it is stale."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from fairreplay.errors import BadInputError, UsageError
from fairreplay.metrics import costs
from fairreplay.metrics.options import measure_options
from fairreplay.planning import capacity as reckoned
from fairreplay.planning import load_search
from fairreplay.planning.capacity import capacity, document
from fairreplay.report import schema
from fairreplay.report.capacity import load_capacity
from fairreplay.report.gather import report_document
from fairreplay.report.html import render
from fairreplay.report.redaction import Redaction
from fairreplay.report.schema import Document
from fairreplay.report.versions import checked
from fairreplay.report.write import encode
from fairreplay.store.store import Store
from fairreplay.trace.pseudonyms import Pseudonyms
from tests.report import scene
from tests.report.documents import HOSTILE, Page, renamed


@pytest.mark.parametrize(
    ("told", "known"),
    [
        (schema.CapacityBound, reckoned.Bound),
        (schema.CapacityLoad, reckoned.Facts),
        (schema.CapacityTenant, reckoned.TenantShare),
        (schema.CapacityType, reckoned.TypeShare),
        (schema.CapacityCell, reckoned.Cell),
        (schema.CapacityTried, load_search.Tried),
        (schema.CapacityFound, load_search.Found),
        (schema.CapacityGroup, reckoned.Group),
        (schema.CostEstimate, costs.Estimate),
        (schema.CostPart, costs.Part),
    ],
    ids=lambda value: value.__name__,
)
def test_the_document_has_the_fields_of_what_was_reckoned(told: type, known: type) -> None:
    """A report cannot import planning, so that the two are written twice: in the same words and order."""
    assert list(get_type_hints(told)) == [field.name for field in fields(known)]


FOUND = {
    "load": {
        "answer": {"percent": 137, "replicas": 1, "scr": 0.9931, "windows": 30},
        "reason": None,
        "tried": [{"percent": 137, "replicas": 1, "scr": 0.9931, "windows": 30}],
    },
    "replicas_needed": {"answer": None, "reason": "SCR is below 0.99 even with 1024 replicas", "tried": []},
}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return scene.stored(tmp_path_factory.mktemp("capacity"), scene.log(), scene.config())


@pytest.fixture(scope="module")
def facts(store: Store) -> dict[str, Any]:
    """Of the scene, with the answers of a search that was not made."""
    config = scene.config()
    made = document(capacity(store, config, measure_options(config), search=False), store)
    made["groups"][0] |= FOUND
    return made


@pytest.fixture
def file(tmp_path: Path, facts: dict[str, Any]) -> Path:
    (tmp_path / "capacity.json").write_text(json.dumps(facts))
    return tmp_path / "capacity.json"


def report(store: Store, file: Path, redaction: Redaction | None = None) -> Document:
    config = scene.config()
    given = load_capacity(file, store.digest())
    return report_document(store, config, measure_options(config), capacity=given, redaction=redaction)


def test_the_section_says_what_was_found(store: Store, file: Path, facts: dict[str, Any]) -> None:
    made = report(store, file)
    page = Page(render(made))
    assert page.headings.index("Capacity") == page.headings.index("Cost estimates") + 1
    assert made["capacity"] == facts
    (group,) = facts["groups"]
    assert f"can deliver {group['b_alloc']:,.0f} tokens in a window of 1 min, bound by step time." in page.text
    assert "SCR stays at 0.99 or above up to 1.37 times the load of the trace" in page.text
    assert "No number of replicas was found for 1.00 times the load: SCR is below 0.99 even with 1024" in page.text
    for tenant in group["tenants"]:
        assert f"{tenant['headroom']:,.0f}".replace("-", "") in page.text.replace("−", "")
    assert checked(json.loads(encode(made)), "report.json")["capacity"] == made["capacity"]


def test_the_costs_of_the_scene_are_as_estimated(store: Store, file: Path, facts: dict[str, Any]) -> None:
    """The scene's log is what the sandbox itself did under its baseline."""
    costs = report(store, file)["costs"]
    assert costs["estimates"] is not None
    assert [(one["type"], one["p50"], one["drift"]) for one in costs["estimates"]] == [
        ("chat", 1.0, 0.0),
        ("completion", 1.0, 0.0),
    ]
    assert costs == facts["costs"]


def test_hostile_names_are_shown(store: Store, file: Path) -> None:
    made = report(store, file)
    ours = Counter(tag for tag, _ in Page(render(made)).tags)
    for name in HOSTILE[:6]:
        found = Counter(tag for tag, _ in Page(render(renamed(made, "globex", name))).tags)
        assert {tag for tag in found if found[tag] > ours[tag]} <= {
            "details",
            "summary",
            "ul",
            "li",
            "bdi",
        }  # long names


def test_no_tenant_is_left_in_a_redacted_one(store: Store, file: Path) -> None:
    content = encode(report(store, file, Redaction(Pseudonyms(b"0123456789abcdef")))).decode()
    assert not any(tenant in content for tenant in scene.TENANTS)
    assert '"headroom_peak"' in content


def test_what_is_stale_or_something_else_is_refused(tmp_path: Path, file: Path, store: Store) -> None:
    with pytest.raises(UsageError, match="reckoned from other requests than the store holds now"):
        load_capacity(file, "0" * 16)
    with pytest.raises(UsageError, match="cannot be read"):
        load_capacity(tmp_path / "none.json", store.digest())
    for content, message in (("{", "no JSON"), ("[]", "no capacity document"), ('{"groups": 1}', "store_digest")):
        (tmp_path / "other.json").write_text(content)
        with pytest.raises(BadInputError, match=message) as caught:
            load_capacity(tmp_path / "other.json", store.digest())
        assert "\n" not in str(caught.value)
