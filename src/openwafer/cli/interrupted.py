"""What a command says that Ctrl-C has ended."""

import sys
from typing import Any

from typer.core import TyperGroup


class TellingGroup(TyperGroup):
    """Commands of which none ends without a word."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command; its library makes an exit code of Ctrl-C, and nothing else."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise
