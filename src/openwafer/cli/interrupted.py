"""A command that Ctrl-C ends says so."""

import sys
from typing import Any

from typer.core import TyperGroup


class TellingGroup(TyperGroup):
    """Commands that say so when they are interrupted."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; its library makes an exit code of Ctrl-C, and nothing else."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise
