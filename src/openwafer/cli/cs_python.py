"""``cs_python``: a Python that knows the vendor's modules, for unmodified host scripts."""

import os
import sys
from pathlib import Path

from openwafer.cli import EXIT_MISTAKE, commands_beside, loading

USAGE = """usage: cs_python [--check[=wrap]] [--profile[=FILE]] SCRIPT [ARGUMENT ...]

Run a host script with the vendor's module names, on the simulated fabric.

  --check       look for mistakes of its programs while they run, and tell them as warnings
  --check=wrap  look also at integer arithmetic that loses bits
  --profile     say where the cycles of the script's longest run went; also in a FILE"""


def main() -> None:
    """Run the script of ``sys.argv``; options before it look for mistakes, or take a profile."""
    with loading():
        from openwafer.diagnostics import OpenwaferError, tell
        from openwafer.sdk.compat.script import run_script, show_mistake
        from openwafer.sdk.program.environment import CHECK_VARIABLE

    sys.excepthook = show_mistake
    arguments = sys.argv[1:]
    if arguments[:1] in (["--help"], ["-h"], []):
        print(USAGE)
        return
    ways = {"--check": "warning", "--check=wrap": "wrap"}
    profiles: list[Path] | None = None
    while arguments and (arguments[0] in ways or arguments[0].partition("=")[0] == "--profile"):
        option, _, file = arguments.pop(0).partition("=")
        if option == "--profile":
            profiles = [Path(file)] if file else []
        else:
            os.environ[CHECK_VARIABLE] = ways[f"{option}={file}" if file else option]
    try:
        if profiles is not None and arguments:
            sys.exit(_profiled(arguments, profiles))
        if run_script(arguments, commands_beside()):
            sys.exit(EXIT_MISTAKE)
    except OpenwaferError as found:
        tell(found.diagnostics)
        sys.exit(EXIT_MISTAKE)


def _profiled(arguments: list[str], files: list[Path]) -> int:
    """Run the script in a process of its own, whose exit code this gives, and profile it."""
    from openwafer.cli.csl_profile import ProfileOptions, profile_script

    return profile_script(arguments, ProfileOptions(tuple(files)))


if __name__ == "__main__":
    main()
