"""Entry point of `kubectl-speculator`: `kubectl speculator COMMAND` when it is on the PATH."""

import sys
from typing import Any

import typer
from typer.core import TyperGroup

from speculator_operator.cli import plotting, reading, verifying, waiting, writing
from speculator_operator.cli.errors import CliError


class _Commands(TyperGroup):
    """Ends a command that failed with its sentence and exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except CliError as error:
            sys.stderr.write(f"Error: {error}\n")
            raise typer.Exit(error.exit_code) from error
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


app = typer.Typer(
    cls=_Commands,
    help="Watch, audit and command the rollouts of Speculators.",
    no_args_is_help=True,
    # Plain help, errors and tracebacks: the same on a terminal, in a pipe and for a screen reader.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("list")(reading.list_)
app.command()(reading.get)
app.command()(reading.status)
app.command()(reading.history)
app.command()(reading.diff)
app.command()(reading.explain)
app.command()(verifying.verify)
app.command()(plotting.plot)
app.command()(waiting.wait)
app.command()(writing.promote)
app.command()(writing.abort)
app.command()(writing.retry)
app.command()(writing.rollback)
app.command()(writing.pause)
app.command()(writing.resume)
app.command("target-only")(writing.target_only)
app.command()(writing.pin)
app.command()(writing.auto)
