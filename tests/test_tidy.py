"""The repository itself: start-up time budget by imports, no addresses, no machine paths, one-line docstrings there."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "fairreplay").rglob("*.py"))


def tracked_text_files() -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    paths = [ROOT / name for name in names.stdout.decode().split("\0") if name]
    ours = [path for path in paths if "data" not in path.relative_to(ROOT).parts and path.is_file()]
    return [path for path in ours if path.suffix in {".py", ".toml", ".md", ".yml", ".j2", ".css", ".js", ""}]


def test_no_machine_path_or_registry_host_is_named() -> None:
    machine = ["/" + name + "/" for name in ("work", "root", "home")]
    hosts = [name + "." for name in ("pyp" + "i", "files.python" + "hosted", "deb.deb" + "ian", "registry.npm" + "js")]
    forbidden = re.compile("|".join(re.escape(text) for text in machine + hosts))
    hits = []
    for path in tracked_text_files():
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            if forbidden.search(line):
                hits.append(f"{path.relative_to(ROOT)}:{number}")
    assert hits == []


def test_help_imports_nothing_heavy() -> None:
    """What takes long to import waits for the command that needs it; timing itself is measured in benchmarks/."""
    heavy = ("polars", "pyarrow", "duckdb", "plotly", "numpy", "numba", "scipy", "pydantic", "jinja2", "orjson")
    code = f"import sys, fairreplay.cli.app; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_module_says_what_it_is() -> None:
    missing = [
        str(path.relative_to(ROOT)) for path in SOURCES if ast.get_docstring(ast.parse(path.read_text("utf-8"))) is None
    ]
    assert missing == []


def test_no_wall_clock_and_no_global_random_outside_the_command_line() -> None:
    """Same inputs, same bytes: clocks and randomness are passed in."""
    forbidden = re.compile(r"\b(datetime\.now|time\.time\(|utcnow|np\.random\.seed|random\.random\(|uuid4|os\.urandom)")
    hits = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in SOURCES
        if "cli" not in path.relative_to(ROOT).parts
        for match in forbidden.finditer(path.read_text("utf-8"))
    ]
    assert hits == []
