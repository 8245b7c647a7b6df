"""``fairreplay calibrate``: step times and KV size that make the sandbox behave like the log."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairreplay.cli import console
from fairreplay.cli.options import (
    DEFAULT_STORE,
    ConfigOption,
    JsonOption,
    QuietOption,
    SinceOption,
    StoreOption,
    UntilOption,
)
from fairreplay.config.instants import period
from fairreplay.errors import UsageError

if TYPE_CHECKING:
    from fairreplay.planning.calibrate import Calibration

SIMULATIONS = 100


def calibrate(
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE.toml", help="Where the config is written.")],
    batching: Annotated[
        str | None, typer.Option("--batching", help='"auto": choose batching and admission too.', show_default=False)
    ] = None,
    model: Annotated[str | None, typer.Option("--model", help="The model to fit, where the log holds several.")] = None,
    simulations: Annotated[
        int, typer.Option("--simulations", min=10, help="How many simulations the search may take.")
    ] = SIMULATIONS,
    since: SinceOption = None,
    until: UntilOption = None,
    store: StoreOption = DEFAULT_STORE,
    config: ConfigOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Fit the step-time model and the KV size to the log, and write the config with the values found.

    Every second request is fitted; the error is stated on the others, which the fit never sees.
    """
    from fairreplay.config.load import DEFAULT_NAME, load_config, parse_config
    from fairreplay.planning.calibrate import calibrate as fit
    from fairreplay.planning.config_file import check_folder, edited, moved, write_atomically
    from fairreplay.store.store import open_store

    if batching not in (None, "auto"):
        raise UsageError(f'--batching {batching!r}: only "auto"; a fixed batching is set in the config')
    check_folder(output)
    begin, end = period(since, until)
    settings = load_config(config)
    path = config if config is not None else Path(DEFAULT_NAME)
    given = path.read_text(encoding="utf-8") if path.exists() else ""
    frame = open_store(store).requests(begin, end)
    with console.progress("calibrate", "simulations", quiet=quiet or json) as on_simulation:
        fitted = fit(
            frame,
            settings,
            model=model,
            batching="auto" if batching else None,
            simulations=simulations,
            on_simulation=on_simulation,
        )
    text = moved(edited(given, fitted.model, fitted.values), path.parent, output.parent)
    parse_config(text, str(output))  # what is written can be read
    write_atomically(output, text)
    if json:
        console.out_json({"output": str(output), **asdict(fitted)})
    elif not quiet:
        console.out(_summary(fitted, output))


def _summary(fitted: Calibration, output: Path) -> str:
    columns = ("error", "before, fitted", "before, held out", "after, fitted", "after, held out")
    parts = (fitted.before_fitted, fitted.before_held_out, fitted.after_fitted, fitted.after_held_out)
    rows: list[list[object]] = [["requests", *(part.requests for part in parts)]]
    for q in ("p50", "p90", "p99"):
        rows.append([f"TTFT {q.upper()}", *(f"{getattr(part, f'ttft_{q}_error'):+.1%}" for part in parts)])
    rows.append(["TTFT, median request", *(_factor(part.ttft_median_error) for part in parts)])
    rows.append(["decode time, median request", *(_factor(part.decode_median_error) for part in parts)])
    values = [f"{key} = {value}" for key, value in _flat(fitted.values)]
    unfit = [f"not fitted: {reason}" for reason in fitted.kept]
    lines = [console.table(columns, rows), _baseline(fitted), "", *values, *unfit]
    return "\n".join([*lines, "", f"{console.printable(str(output))} written after {fitted.simulations} simulations"])


def _baseline(fitted: Calibration) -> str:
    """The linear baseline beside the fit, both on the half that neither saw."""
    plain = fitted.fixed_rate
    errors = ", ".join(f"{q.upper()} {getattr(plain.held_out, f'ttft_{q}_error'):+.1%}" for q in ("p50", "p90", "p99"))
    return f"\nFor comparison, a queue of a fixed rate ({plain.tokens_per_s:g} tokens/s), held out: TTFT {errors}"


def _factor(log_error: float) -> str:
    """A typical distance in either direction."""
    from math import expm1

    distance = expm1(log_error)
    return f"±{distance:.1%}" if distance < 1 else f"{distance + 1:.0f} times"


def _flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, object]]:
    flat: list[tuple[str, object]] = []
    for key, value in values.items():
        flat += _flat(value, f"{key}.") if isinstance(value, dict) else [(prefix + key, value)]
    return flat
