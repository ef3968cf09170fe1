"""``cs_python``: a Python that knows the vendor's modules, for unmodified host scripts."""

import os
import sys
from pathlib import Path

from openwafer.cli import EXIT_MISTAKE, loading

USAGE = """usage: cs_python [--check[=wrap]] SCRIPT [ARGUMENT ...]

Run a host script with the vendor's module names, on the simulated fabric.

  --check       look for mistakes of its programs while they run, and tell them as warnings
  --check=wrap  look also at integer arithmetic that loses bits"""


def main() -> None:
    """Run the script of ``sys.argv``; ``--check`` before it looks for mistakes of its program."""
    with loading():
        from openwafer.diagnostics import OpenwaferError, tell
        from openwafer.sdk.compat.script import run_script, show_mistake
        from openwafer.sdk.program.environment import CHECK_VARIABLE

    sys.excepthook = show_mistake
    here = Path(sys.argv[0]).resolve().parent
    commands = here if (here / "cslc").is_file() else None
    arguments = sys.argv[1:]
    if arguments[:1] in (["--help"], ["-h"], []):
        print(USAGE)
        return
    ways = {"--check": "warning", "--check=wrap": "wrap"}
    if arguments[0] in ways:
        os.environ[CHECK_VARIABLE] = ways[arguments.pop(0)]
    try:
        if run_script(arguments, commands):
            sys.exit(EXIT_MISTAKE)
    except OpenwaferError as found:
        tell(found.diagnostics)
        sys.exit(EXIT_MISTAKE)


if __name__ == "__main__":
    main()
