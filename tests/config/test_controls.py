"""Each key of the controls: a right value arrives, a wrong one is one line that names file, line, key and value."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from fairreplay.config.load import parse_config
from fairreplay.config.model import Config, resolve_cluster
from fairreplay.errors import UsageError

DAY_MS = 86_400_000

# table, key, right values, values out of range with what is said of them, values of the wrong type
KEYS: list[tuple[str, str, list[str], list[tuple[str, str]], list[str]]] = [
    ("cluster", "queue_limit", ["1", "200"], [("0", "greater than or equal to 1")], ["'200'", "1.5", "true"]),
    ("cluster", "tenant_queue_limit", ["1", "50"], [("0", "greater than or equal to 1")], ["'50'", "[]"]),
    (
        "cluster",
        "queue_time_limit_ms",
        ["0.5", "20_000"],
        [("0", "greater than 0"), ("-1.0", "greater than 0")],
        ["'20s'"],
    ),
    ("tenants.acme", "queue_limit", ["1", "7"], [("0", "greater than or equal to 1")], ["'7'", "0.5"]),
    (
        "tenants.acme",
        "rate_per_s",
        ["0.001", "2"],
        [("0.0", "greater than or equal to 0.001"), ("1e10", "less than or equal to")],
        ["'2/s'"],
    ),
    (
        "retry",
        "attempts",
        ["0", "100"],
        [("-1", "greater than or equal to 0"), ("101", "less than or equal to 100")],
        ["'3'", "2.5"],
    ),
    (
        "retry",
        "retry_after_ms",
        ["0.001", "86_400_000"],
        [("0", "greater than or equal to 0.001"), ("86_400_001", "less than or equal to 86400000")],
        ["'1s'", "nan"],
    ),
    (
        "backpressure",
        "rate_per_s",
        ["0.001", "10.0"],
        [("0", "greater than or equal to 0.001"), ("inf", "finite number")],
        ["'10'"],
    ),
    ("backpressure", "rate_min_per_s", ["0.5"], [("0", "greater than or equal to 0.001")], ["'a'"]),
    ("backpressure", "recovery_per_s", ["0.5"], [("0", "greater than or equal to 0.001")], ["{}"]),
    (
        "backpressure",
        "burst",
        ["1", "1_000_000_000"],
        [("0", "greater than or equal to 1"), ("1_000_000_001", "less than or equal to 1000000000")],
        ["2.5"],
    ),
    (
        "backpressure",
        "window_ms",
        ["1", "10_000"],
        [("0.5", "greater than or equal to 1"), ("86_400_001", "less than or equal to 86400000")],
        ["'10s'"],
    ),
    ("backpressure", "hold_ms", ["1", "500.5"], [("0", "greater than or equal to 1")], ["'10s'"]),
    ("backpressure", "check_ms", ["1", "100"], [("0", "greater than or equal to 1")], ["'10s'"]),
    (
        "backpressure",
        "signal_delay_ms",
        ["0", "1500"],
        [("-1", "greater than or equal to 0"), ("86_400_001", "less than or equal to 86400000")],
        ["'10s'"],
    ),
    ("backpressure", "update", ["'clip'", "'literal'"], [("'gentle'", "'clip' or 'literal'")], ["3"]),
    ("kv_admission", "long_tokens", ["1", "8000"], [("0", "greater than or equal to 1")], ["'8k'", "1.5"]),
    (
        "kv_admission",
        "saturation",
        ["0", "0.85", "1"],
        [("-0.1", "greater than or equal to 0"), ("1.1", "less than or equal to 1")],
        ["'85 %'"],
    ),
    ("kv_admission", "long_rate_per_s", ["0.001", "5"], [("0", "greater than or equal to 0.001")], ["'1'"]),
    (
        "preempt",
        "utilization_max",
        ["0", "0.8", "1000"],
        [("-0.1", "greater than or equal to 0"), ("1001", "less than or equal to 1000")],
        ["'80 %'"],
    ),
    (
        "preempt",
        "recovery_ms_max",
        ["0", "100"],
        [("-1", "greater than or equal to 0"), ("86_400_001", "less than or equal to 86400000")],
        ["'100ms'"],
    ),
    ("preempt", "denied", ["'wait'", "'refuse'"], [("'drop'", "'wait' or 'refuse'")], ["true"]),
    ("preempt", "victims", ["'recompute'"], [("'discard'", "'recompute' or 'swap'")], ["1"]),
    (
        "preempt",
        "host_gb",
        ["0", "64"],
        [("-1", "greater than or equal to 0"), ("1e7", "less than or equal to 1000000")],
        ["'64 GB'"],
    ),
    ("preempt", "host_gb_per_s", ["0.1", "25"], [("0", "greater than 0")], ["'25'"]),
    (
        "preempt",
        "kv_bytes_per_token",
        ["1", "131_072"],
        [("0", "greater than or equal to 1"), ("1_000_000_001", "less than or equal to 1000000000")],
        ["'128k'", "0.5"],
    ),
    ("emergency", "enabled", ["true", "false"], [], ["'yes'", "'true'", "1", "0.0"]),
    ("emergency", "jfi", ["'over-served'", "'low-weight'"], [("'all'", "'over-served' or 'low-weight'")], ["1"]),
    ("policies.vtc", "preemption_threshold", ["0", "400"], [("-1", "greater than or equal to 0")], ["'400'", "0.5"]),
    (
        "policies.rpm-limit",
        "rpm",
        ["1", "20"],
        [("0", "greater than or equal to 1"), ("1_000_000_001", "less than or equal to 1000000000")],
        ["'20'"],
    ),
]


def parsed(table: str, key: str, value: str) -> Config:
    return parse_config(f"# controls\n[{table}]\n{key} = {value}\n", "fr.toml")


def told(table: str, key: str, value: str) -> str:
    with pytest.raises(UsageError) as caught:
        parsed(table, key, value)
    return str(caught.value)


def found(config: Config, table: str, key: str) -> Any:
    first, _, name = table.partition(".")
    place = getattr(config, first)
    return getattr(place[name] if name else place, key)


def case_id(value: object) -> str | None:
    return value if isinstance(value, str) else None


RIGHT = [(table, key, value) for table, key, values, _, _ in KEYS for value in values]
OUT = [(table, key, value, said) for table, key, _, values, _ in KEYS for value, said in values]
WRONG = [(table, key, value) for table, key, _, _, values in KEYS for value in values]


@pytest.mark.parametrize(("table", "key", "value"), RIGHT, ids=case_id)
def test_a_right_value_arrives(table: str, key: str, value: str) -> None:
    assert found(parsed(table, key, value), table, key) == tomllib.loads(f"x = {value}")["x"]


@pytest.mark.parametrize(("table", "key", "value", "said"), OUT, ids=case_id)
def test_a_value_out_of_range_is_one_line(table: str, key: str, value: str, said: str) -> None:
    message = told(table, key, value)
    assert message.startswith("config fr.toml, line 3: ")
    assert f"{table}.{key} = " in message
    assert said in message
    assert "\n" not in message


@pytest.mark.parametrize(("table", "key", "value"), WRONG, ids=case_id)
def test_a_value_of_the_wrong_type_is_one_line(table: str, key: str, value: str) -> None:
    message = told(table, key, value)
    assert message.startswith("config fr.toml, line 3: ")
    assert f"{table}.{key} = " in message
    assert "Input should be" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("table", "typo", "meant"),
    [
        ("cluster", "queue_limits", "queue_limit"),
        ("cluster", "queue_time_limit", "queue_time_limit_ms"),
        ("cluster", "tenant_queue_limits", "tenant_queue_limit"),
        ("tenants.acme", "rate_per_sec", "rate_per_s"),
        ("retry", "atempts", "attempts"),
        ("retry", "retry_after", "retry_after_ms"),
        ("backpressure", "rate_per_second", "rate_per_s"),
        ("backpressure", "hold", "hold_ms"),
        ("backpressure", "signal_delay", "signal_delay_ms"),
        ("kv_admission", "long_token", "long_tokens"),
        ("kv_admission", "saturaton", "saturation"),
        ("preempt", "utilisation_max", "utilization_max"),
        ("preempt", "recovery_max_ms", "recovery_ms_max"),
        ("preempt", "victim", "victims"),
        ("emergency", "enable", "enabled"),
        ("policies.vtc", "preemption_treshold", "preemption_threshold"),
    ],
)
def test_an_unknown_key_names_the_nearest(table: str, typo: str, meant: str) -> None:
    message = told(table, typo, "1")
    assert message.startswith(f"config fr.toml, line 3: unknown key '{table}.{typo}'")
    assert f"did you mean '{meant}'?" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("typo", "meant"),
    [("retries", "retry"), ("backpresure", "backpressure"), ("kv_admision", "kv_admission"), ("preemt", "preempt")],
)
def test_an_unknown_table_names_the_nearest(typo: str, meant: str) -> None:
    message = told(typo, "attempts", "1")
    assert message.startswith(f"config fr.toml, line 2: unknown key '{typo}'")
    assert f"did you mean '{meant}'?" in message


def test_swap_needs_room() -> None:
    with pytest.raises(UsageError) as caught:
        parse_config("[preempt]\nvictims = 'swap'\n", "fr.toml")
    assert 'victims = "swap" needs host_gb, the host memory of a replica' in str(caught.value)
    assert "preempt" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert parse_config("[preempt]\nvictims = 'swap'\nhost_gb = 1\n", "fr.toml").preempt.host_gb == 1


def test_defaults_are_off() -> None:
    config = Config()
    assert not config.has_controls()
    engine = resolve_cluster(config, None).engine
    assert (engine.queue_limit, engine.tenant_queue_limit, engine.queue_time_limit_ms) == (None, None, None)


@pytest.mark.parametrize(
    "text",
    [
        "[cluster]\nqueue_time_limit_ms = 5\n",
        "[cluster]\ntenant_queue_limit = 5\n",
        "[models.big]\ntenant_queue_limit = 5\n",
        "[[cluster.changes]]\nat = 2026-11-02T09:16:00Z\nqueue_time_limit_ms = 5\n",
        "[tenants.a]\nqueue_limit = 5\n",
        "[tenants.a]\nrate_per_s = 5\n",
        "[retry]\nattempts = 1\n",
        "[backpressure]\nrate_per_s = 1\n",
        "[kv_admission]\nlong_tokens = 1\n",
        "[preempt]\nvictims = 'swap'\nhost_gb = 1\n",
        "[policies.vtc]\npreemption_threshold = 0\n",
        "[emergency]\nenabled = true\n",
    ],
)
def test_each_control_is_one(text: str) -> None:
    assert parse_config(text, "fr.toml").has_controls()


@pytest.mark.parametrize(
    "text",
    ["[retry]\nretry_after_ms = 5\n", "[backpressure]\nburst = 5\n", "[preempt]\nhost_gb = 5\n", "[emergency]\n"],
)
def test_settings_of_a_control_that_is_off_are_none(text: str) -> None:
    assert not parse_config(text, "fr.toml").has_controls()
