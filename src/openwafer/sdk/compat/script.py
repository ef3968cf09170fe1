"""Runs a host script with the vendor's modules in place, as ``cs_python SCRIPT ...`` does."""

import os
import random
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from openwafer.diagnostics import error
from openwafer.sdk.compat import finder
from openwafer.sdk.program.environment import FINAL_STATE_VARIABLE


def run_script(arguments: Sequence[str], commands: Path | None) -> None:
    """Run the script that the first argument names, in this process, as ``__main__``.

    Args:
        arguments: the script, then its own arguments.
        commands: folder whose commands the script's own processes find first; None leaves PATH.

    Raises:
        OpenwaferError: no script is named, or there is none. What the script raises passes.
    """
    if not arguments:
        raise error("no-script", "no script is named", help="write: cs_python run.py --name out")
    script = Path(arguments[0])
    if not script.is_file():
        raise error("no-script", f"there is no script {script}")
    if commands is not None:
        os.environ["PATH"] = f"{commands}{os.pathsep}{os.environ.get('PATH', '')}"
    sys.argv = list(arguments)
    sys.path.insert(0, str(script.resolve().parent))
    finder.install()
    if FINAL_STATE_VARIABLE in os.environ:
        # Runs that are compared start from the same random numbers.
        random.seed(0)
        np.random.seed(0)
    runpy.run_path(str(script), run_name="__main__")
