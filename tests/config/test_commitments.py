"""Commitments with dates from CSV: what they mean for entitlements, skews and the weights of the sandbox."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from fairreplay.config.load import load_config
from fairreplay.errors import UsageError
from fairreplay.metrics import weights
from fairreplay.metrics.entitlement import entitlements, fair_weights, over_time
from fairreplay.sandbox.plan import weight_in_force
from fairreplay.trace.values import epoch_us

CSV = """\
tenant,committed_tokens_per_month,valid_from,note
a,300,2026-11-01,first
b,100,2026-11-01T00:00:00Z,
a,100,2026-12-01T00:00:00+01:00,less
b,0,2026-12-15,gone
"quoted, name",500,,always was
"""
OCTOBER, NOVEMBER, DECEMBER, LATE = (
    datetime(2026, month, day, tzinfo=UTC) for month, day in ((10, 5), (11, 5), (12, 5), (12, 20))
)


def config_with(folder: Path, csv: str = CSV, toml: str = '[weights]\nfile = "billing/c.csv"\n'):  # type: ignore[no-untyped-def]
    (folder / "billing").mkdir(exist_ok=True)
    (folder / "billing" / "c.csv").write_text(csv, encoding="utf-8")
    (folder / "f.toml").write_text(toml, encoding="utf-8")
    return load_config(folder / "f.toml")


def test_each_row_holds_until_the_tenants_next(tmp_path: Path) -> None:
    config = config_with(tmp_path)
    assert config.commitments(OCTOBER) == {"quoted, name": 500}
    assert config.commitments(NOVEMBER) == {"a": 300, "b": 100, "quoted, name": 500}
    assert config.commitments(DECEMBER) == {"a": 100, "b": 100, "quoted, name": 500}
    assert config.commitments(LATE) == {"a": 100, "quoted, name": 500}
    assert config.commitments() == config.commitments(LATE)
    assert config.commitment_instants()[1:] == (
        datetime(2026, 11, 1, tzinfo=UTC),
        datetime(2026, 11, 30, 23, tzinfo=UTC),
        datetime(2026, 12, 15, tzinfo=UTC),
    )


def test_the_config_s_own_commitment_holds_before_the_first_row(tmp_path: Path) -> None:
    toml = '[weights]\nfile = "billing/c.csv"\n[tenants.a]\ncommitted_tokens_per_month = 700\nweight = 2.0\n'
    config = config_with(tmp_path, toml=toml)
    assert [config.commitments(at).get("a") for at in (OCTOBER, NOVEMBER)] == [700, 300]
    assert config.tenants["a"].weight == 2.0


def test_weights_over_time(tmp_path: Path) -> None:
    """November: a 300, b 100 of a mean of 200; December: 100 each."""
    config = config_with(tmp_path, CSV.replace('"quoted, name",500,,always was\n', ""))
    starts = np.array([epoch_us(at) for at in (OCTOBER, NOVEMBER, DECEMBER, LATE)])
    found = over_time(config, starts, lambda at: fair_weights(config, ["a", "b"], at))
    assert found.tolist() == [[1, 1], [1.5, 0.5], [1, 1], [1, 1]]
    assert weights.committed(config, ["a", "b"], starts).tolist() == [[0, 0], [300, 100], [100, 100], [100, 0]]
    assert weights.configured(config, ["a", "b"], starts).tolist() == found.tolist()
    skews = weights.skews(np.ones((4, 2)), weights.committed(config, ["a", "b"], starts))
    assert np.isnan(skews[0]).all()
    assert skews[1].tolist() == [pytest.approx(2 / 3), 2.0]
    assert skews[2].tolist() == [1.0, 1.0]


def test_entitlements_follow_the_commitments_of_their_window() -> None:
    """400 delivered, both want 400: 300 and 100 by 3:1, 200 each by 1:1."""
    found = entitlements(np.array([400.0, 400.0]), np.array([[1.5, 0.5], [1.0, 1.0]]), np.full((2, 2), 400.0))
    assert found.tolist() == [[300, 100], [200, 200]]


def test_the_sandbox_weighs_by_the_commitments_of_the_moment(tmp_path: Path) -> None:
    config = config_with(tmp_path, CSV.replace('"quoted, name",500,,always was\n', ""))
    found = [weight_in_force(config, "a", at) for at in (OCTOBER, NOVEMBER, DECEMBER)]
    assert found == [Fraction(1), Fraction(3, 2), Fraction(1)]


def test_without_dates_nothing_changes_over_time(tmp_path: Path) -> None:
    config = config_with(tmp_path, toml="[tenants.a]\ncommitted_tokens_per_month = 3\n")
    starts = np.array([epoch_us(NOVEMBER)])
    assert over_time(config, starts, lambda at: fair_weights(config, ["a"], at)).shape == (1,)


@pytest.mark.parametrize(
    ("csv", "says"),
    [
        ("", "empty; it needs the columns tenant, committed_tokens_per_month, valid_from"),
        ("tenant,tokens,valid_from\n", "row 1: column committed_tokens_per_month is missing"),
        ("tenent,committed_tokens_per_month,valid_from\n", "row 1: column tenant is missing (did you mean 'tenent'?)"),
        ("tenant,tenant,committed_tokens_per_month,valid_from\n", "row 1: column tenant is there twice"),
        (CSV.replace("300", "3e8"), "row 2, column committed_tokens_per_month: '3e8' is no whole number of tokens"),
        (CSV.replace("300", "-3"), "row 2, column committed_tokens_per_month: '-3' is no whole number"),
        (CSV.replace("2026-11-01,", "01.11.2026,"), "row 2, column valid_from: '01.11.2026' is no ISO 8601 date"),
        (
            CSV + "a,5,2026-11-01\n",
            "row 7, column valid_from: tenant 'a' has a commitment from that instant on in row 2",
        ),
        (CSV + ",5,2026-11-01\n", "row 7, column tenant: empty"),
        (CSV + "a\n", "row 7: 1 cells, fewer than the header names"),
        (CSV + '"a,5,2026\n', "row 7: no CSV"),
    ],
)
def test_errors_name_file_row_and_column(tmp_path: Path, csv: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        config_with(tmp_path, csv)
    assert str(tmp_path / "billing" / "c.csv") in str(caught.value)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_other_spellings_of_csv(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        config_with(tmp_path, toml='[weights]\nfile = "nowhere.csv"\n')
    spelled = "\ufefftenant;committed_tokens_per_month;valid_from\r\n  a ; 7 ; \r\n\r\n"
    assert config_with(tmp_path, spelled).commitments() == {"a ": 7}
