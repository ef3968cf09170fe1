"""``cslc``: compile a CSL program for the simulated fabric."""

import gc
import sys
import time
from collections.abc import Sequence

from openwafer.cli import EXIT_INTERRUPTED, loading

EXIT_ERROR = 1


def main() -> None:
    """Compile what ``sys.argv`` names."""
    # A compilation lives for seconds and drops little; looking for cycles would take a tenth.
    gc.disable()
    try:
        code = run(sys.argv[1:])
    except KeyboardInterrupt:
        print("interrupted: nothing was compiled", file=sys.stderr)
        code = EXIT_INTERRUPTED
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Compile; return the exit code: 0, or 1 after diagnostics."""
    with loading():
        from openwafer.diagnostics import OpenwaferError, tell
        from openwafer.sdk.compiler import compilations
        from openwafer.sdk.compiler.command_line import parse_command

    try:
        started = time.monotonic()
        command = parse_command(arguments)
        tell(command.warnings)
        if command.emit is None:
            compilations.clear(command.output)
        done = None if command.emit else compilations.find(command.layout, command.options)
        if done is None:
            # Behind what needs none of it: help, mistyped options, what was compiled before.
            with loading():
                from openwafer.sdk.compiler.pipeline import compile_files, render_stage

            if command.emit is not None:
                print(render_stage(command), end="")
                return 0
            done = compile_files(command.layout, command.options)
        done.write(command.output, command.output_json)
    except OpenwaferError as found:
        tell(found.diagnostics)
        return EXIT_ERROR
    for line in done.printed:
        print(line)
    for warning in done.warnings:
        print(warning, file=sys.stderr)
    if command.is_verbose:
        print(f"{command.layout} -> {command.output}, {time.monotonic() - started:.1f} s")
    print("compile successful")
    return 0


if __name__ == "__main__":
    main()
