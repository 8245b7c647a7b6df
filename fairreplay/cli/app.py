"""The list of commands. Heavy imports wait inside the command that needs them: ``--help`` answers in below 0.3 s."""

from __future__ import annotations

import gc
import os
import sys

import typer

from fairreplay import __version__
from fairreplay.cli import (
    calibrate,
    capacity,
    check,
    compare,
    demo,
    episodes,
    evaluate,
    explain,
    export,
    ingest,
    init,
    metrics,
    replay,
    report,
    review,
    schedule,
    sql,
    synth,
    verify,
)

GC_THRESHOLD = 100_000
INTERRUPTED = 130
"""Exit code after Ctrl-C, as typer gives it."""

app = typer.Typer(
    name="fairreplay",
    help="Were we fair, when not, why, and what do we change? Replays LLM request traces through a sandbox scheduler.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"fairreplay {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version.", callback=_version, is_eager=True),
    debug: bool = typer.Option(False, "--debug", help="Show a traceback with an error."),  # read in main
) -> None:
    pass


COMMANDS = (
    ingest,
    replay,
    metrics,
    episodes,
    explain,
    report,
    review,
    compare,
    export,
    sql,
    calibrate,
    capacity,
    verify,
    init,
    check,
    schedule,
    synth,
    evaluate,
    demo,
)

for command in COMMANDS:
    name = command.__name__.rsplit(".", 1)[-1]
    app.command(name)(getattr(command, name))


def main() -> None:
    """Run the command line; expected errors become one line on stderr and their exit code."""
    from fairreplay.errors import FairReplayError

    # Freed memory of data frames goes back at once, which halves the resident size of a large replay. Their allocator
    # reads this when polars is first imported.
    os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0")
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # else every installed package is looked through
    gc.set_threshold(GC_THRESHOLD)  # imports make many objects and no garbage
    debug = "--debug" in sys.argv[1:]
    try:
        app(standalone_mode=True)
    except FairReplayError as error:
        if debug:
            raise
        _fail(str(error), error.exit_code)
    except SystemExit as end:
        _settle(end)
    except Exception as error:  # the last resort turns a bug into one line and exit 70
        if debug:
            raise
        _fail(f"internal error: {type(error).__name__}: {error} (run again with --debug and report it)", 70)
    finally:
        gc.freeze()  # what a command leaves behind is not searched for garbage at the exit, which takes half a second


def _settle(end: SystemExit) -> None:
    """Pass on how a command ended. A reader that went away (``| head``) has seen enough: no error."""
    from fairreplay.cli.console import discard_output

    if end.code == INTERRUPTED:
        _fail("interrupted; what was complete before is kept", INTERRUPTED)
    if isinstance(end.__context__, BrokenPipeError):
        discard_output()
        sys.exit(0)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        discard_output()
    raise end


def _fail(message: str, exit_code: int) -> None:
    from fairreplay.cli.console import printable

    sys.stderr.write(f"fairreplay: {printable(message)}\n")
    sys.exit(exit_code)
