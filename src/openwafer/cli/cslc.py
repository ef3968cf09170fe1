"""``cslc``: compile a CSL program for the simulated fabric."""

import sys
from collections.abc import Sequence

from openwafer.diagnostics import OpenwaferError, render

EXIT_ERROR = 1


def main() -> None:
    """Compile what ``sys.argv`` names."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Compile; return the exit code: 0, or 1 after diagnostics."""
    from openwafer.sdk.compiler.artifacts import write_artifacts
    from openwafer.sdk.compiler.command_line import parse_command

    try:
        command = parse_command(arguments)
        # Behind the options, so that --help and a mistyped option answer at once.
        from openwafer.sdk.compiler.pipeline import compile_program, render_stage

        if command.emit is not None:
            print(render_stage(command), end="")
            return 0
        program = compile_program(command.layout, command.options)
        write_artifacts(program, command.output, command.output_json)
    except OpenwaferError as found:
        for diagnostic in found.diagnostics:
            print(render(diagnostic, color=sys.stderr.isatty()), file=sys.stderr)
        return EXIT_ERROR
    for line in program.printed:
        print(line)
    for warning in program.warnings:
        print(warning, file=sys.stderr)
    print("compile successful")
    return 0


if __name__ == "__main__":
    main()
