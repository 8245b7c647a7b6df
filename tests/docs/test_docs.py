"""The pages of docs/: made parts are current, every command, option, column and cause is named, examples run."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from fairreplay.causes.episodes import MINOR, UNCLASSIFIED
from fairreplay.causes.verdict import CAUSES, LOW_DEMAND, UNEXPLAINED
from fairreplay.cli.app import app
from fairreplay.config.load import parse_config
from fairreplay.export.sql import tables
from fairreplay.export.tables import TABLES
from fairreplay.metrics.alerts import CHANNELS, METRICS, THRESHOLDS
from fairreplay.metrics.measure import TENANT_SCHEMA, TYPE_SCHEMA, WINDOW_SCHEMA
from fairreplay.sandbox.policies.user import HEAD_FIELDS
from fairreplay.trace.formats import FORMATS
from fairreplay.trace.schema import COLUMNS
from tests.docs.blocks import blocks, run_python
from tests.export.conftest import Place, arena  # noqa: F401

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
RUNS = "<!-- runs -->\n```sh\n"


def text(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def named(page: str) -> set[str]:
    """Everything that stands in backticks."""
    return set(re.findall(r"`([^`\n]+)`", page))


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_commands", DOCS / "commands.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", list(generator().pages()), ids=lambda path: path.name)
def test_the_made_parts_are_current(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == generator().pages()[page], "run: python docs/commands.py"


def commands() -> dict[str, Any]:
    return dict(typer.main.get_command(app).commands)  # type: ignore[attr-defined]


def test_every_command_and_option_is_documented() -> None:
    """Independent of the script that makes the tables: from the application itself."""
    page = text("commands.md")
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL))
    shared = set(re.findall(r"--[a-z0-9-]+", sections["Options that commands share"]))
    for name, command in commands().items():
        assert name in sections, f"docs/commands.md says nothing of {name}: run python docs/commands.py"
        section = sections[name]
        own = set(re.findall(r"(?<![\w-])--?[a-z0-9][a-z0-9-]*", section))
        for parameter in command.params:
            for option in parameter.opts:
                if option.startswith("--") and option != "--help":
                    assert option in own, (name, option)
                elif option.startswith("-") and option != "-h":
                    assert option in own or set(parameter.opts) & shared, (name, option)
            if parameter.param_type_name == "argument":
                assert (parameter.metavar or parameter.name.upper()).replace("|", r"\|") in section, (
                    name,
                    parameter.name,
                )
    for parameter in typer.main.get_command(app).params:
        if parameter.opts[0] != "--help":
            assert parameter.opts[0] in sections["Before a command"]


def test_every_export_is_documented() -> None:
    assert {*TABLES, "prometheus", "grafana"} <= named(text("commands.md"))


def test_every_column_level_and_channel_of_the_metrics_is_documented() -> None:
    page = text("metrics.md")
    assert {*WINDOW_SCHEMA, *TENANT_SCHEMA, *TYPE_SCHEMA} <= named(page)
    for metric in METRICS:
        (line,) = re.findall(rf"^\| {metric.upper()} \|.*$", page, flags=re.MULTILINE)
        for level in ("yellow", "red", "emergency"):
            assert f"< {THRESHOLDS[metric][level]:.2f}" in line
        assert f"| {CHANNELS[metric]['yellow']}, {CHANNELS[metric]['red']} |" in line


def test_every_cause_column_format_and_field_is_documented() -> None:
    assert {*CAUSES, LOW_DEMAND, UNEXPLAINED, MINOR, UNCLASSIFIED} <= named(text("causes.md"))
    assert {*COLUMNS, *FORMATS} <= named(text("formats.md"))
    assert set(HEAD_FIELDS) <= named(text("extending.md"))


def test_every_table_of_sql_is_documented(arena: Place) -> None:  # noqa: F811
    known = [name for name in tables(arena.results) if "-" not in name and not name.startswith("replay_")]
    assert {*known, "replay_POLICY"} <= named(text("operating.md"))


def example_lines() -> list[tuple[str, str]]:
    """Every ``fairreplay ...`` of a block in the pages and in the README's blocks, with its page."""
    found = []
    for page in PAGES:
        content = page.read_text(encoding="utf-8")
        fenced = "\n".join(code for language, code in blocks(page) if language == "sh")
        indented = "\n".join(
            re.findall(r"^    (?=\S).*", re.sub(r"```.*?```", "", content, flags=re.DOTALL), re.MULTILINE)
        )
        found += [(page.name, line) for line in re.findall(r"(?:^|\s)fairreplay (\S.*)", f"{fenced}\n{indented}")]
    return found


@pytest.mark.parametrize(("page", "line"), example_lines())
def test_every_example_has_options_that_exist(page: str, line: str) -> None:
    """Parsed by the command itself, not run."""
    name, *arguments = shlex.split(line.split(" | ")[0], comments=True)
    command = commands()[name]
    command.make_context(name, list(arguments), resilient_parsing=False).close()


def test_the_shell_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sample_traces").symlink_to(ROOT / "sample_traces")
    monkeypatch.chdir(tmp_path)
    parts = [part.split("```")[0] for page in ("commands.md", "operating.md") for part in text(page).split(RUNS)[1:]]
    lines = [line for part in parts for line in part.splitlines()]
    assert len(lines) == 12
    for line in lines:
        program, *arguments = shlex.split(line)
        assert program == "fairreplay"
        done = CliRunner().invoke(app, arguments, catch_exceptions=False)
        assert done.exit_code == 0, (line, done.output)
    assert (tmp_path / "out" / "report.html").exists()
    assert (tmp_path / "grafana" / "rules.yml").exists()


@pytest.mark.parametrize("page", ["metrics.md", "causes.md", "extending.md"])
def test_the_python_examples_print_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: str) -> None:
    (tmp_path / "sample_traces").symlink_to(ROOT / "sample_traces")
    monkeypatch.chdir(tmp_path)
    for code, printed, stated in run_python(DOCS / page):
        assert printed == stated, code


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda path: path.relative_to(DOCS).as_posix())
def test_the_settings_that_pages_show_are_settings(page: Path) -> None:
    shown = [content for language, content in blocks(page) if language == "toml"]
    for content in shown:
        parse_config(content, page.name)
    assert shown or page.parent.name != "policies" or page.stem in ("README", "fcfs", "round-robin")


def test_links_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "README.md"]:
        for target, anchor in re.findall(r"\]\(((?!https?:)[^)#]*)(#[^)]*)?\)", page.read_text(encoding="utf-8")):
            path = page.parent / target if target else page
            assert path.exists(), (page.name, target)
            if anchor:
                heads = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
                assert anchor[1:] in {re.sub(r"[^a-z0-9 -]", "", head.lower()).replace(" ", "-") for head in heads}
