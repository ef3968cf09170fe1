"""Starts the vendor's process, and serves it."""

import os
import socket
import subprocess
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from openwafer.diagnostics import error
from openwafer.training.frontends.official.machine import wire
from openwafer.training.frontends.official.machine.engine import Engine

_QUESTION: Final = """
import sys
from importlib.util import find_spec

sys.exit(None if find_spec("cerebras.pytorch") else "No module named 'cerebras.pytorch'")
"""


def run_official(python: Path, script: Sequence[str], folder: Path | None = None) -> int:
    """Run a script of the vendor's front end on our engine, and give its exit code.

    Args:
        python: of an environment that has the vendor's packages.
        script: a file with its arguments; or `cszoo` with its own.
        folder: where stores are on disk; None keeps them in DRAM.

    Raises:
        OpenwaferError: ``official-python`` where that environment lacks the packages, or is none.
    """
    _check(python)
    # Programs of that environment are found as where it is activated.
    path = f"{python.parent.absolute()}{os.pathsep}{os.environ['PATH']}"
    ours, theirs = socket.socketpair()
    given = {"PATH": path, wire.SOCKET_VARIABLE: str(theirs.fileno())}
    command = [str(python), str(Path(__file__).with_name("stand_in.py")), *script]
    numbers = (theirs.fileno(),)
    with (
        ours,
        theirs,
        subprocess.Popen(command, env=os.environ | given, pass_fds=numbers) as process,
    ):
        theirs.close()
        with Connection(ours.detach()) as connection:
            Engine(folder).serve(connection)
    return process.returncode


def _check(python: Path) -> None:
    try:
        # To import it takes seconds, which the script will take too.
        asked = subprocess.run(
            [python, "-c", _QUESTION], capture_output=True, text=True, check=False
        )
        told = asked.stderr.strip().splitlines()[-1:] if asked.returncode else None
    except OSError as cause:
        told = [str(cause.strerror)]
    if told is not None:
        raise error(
            "official-python",
            f"{python} has no cerebras.pytorch: {''.join(told)}",
            help="name the Python of an environment that has the vendor's packages 2.10.0",
        )
