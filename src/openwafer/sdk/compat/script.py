"""Runs a host script with the vendor's modules in place, as ``cs_python SCRIPT ...`` does."""

import os
import random
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from openwafer import foreign_scripts
from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.compat import finder, numpy1
from openwafer.sdk.compat.numpy1.modules import run_as_main
from openwafer.sdk.host.ending import judge_all, tell_of_all
from openwafer.sdk.program.environment import FINAL_STATE_VARIABLE


def run_script(arguments: Sequence[str], commands: Path | None) -> bool:
    """Run the script that the first argument names, in this process, as ``__main__``.

    Returns whether checks told of mistakes in a script that ended well.

    Args:
        arguments: the script, then its own arguments.
        commands: folder whose commands the script's own processes find first; None leaves PATH.

    Raises:
        OpenwaferError: no script is named, or there is none. What the script raises passes.
    """
    script = foreign_scripts.prepare(arguments, "cs_python run.py --name out")
    if commands is not None:
        os.environ["PATH"] = f"{commands}{os.pathsep}{os.environ.get('PATH', '')}"
    finder.install()
    if FINAL_STATE_VARIABLE in os.environ:
        # Runs that are compared start from the same random numbers.
        random.seed(0)
        np.random.seed(0)
    try:
        run_as_main(script)
    except SystemExit as end:
        if end.code:
            tell_of_all()
            raise
    except OpenwaferError as found:
        tell_of_all()
        raise foreign_scripts.at_line_of_script(found, script) from found
    except Exception:
        tell_of_all()
        raise
    return judge_all()


def show_mistake(
    _kind: type[BaseException], mistake: BaseException, _trace: TracebackType | None
) -> None:
    """Print what ended a script, for `sys.excepthook`, with the frames of the script alone.

    Those behind its operators compute by numpy 1's rules.
    """
    foreign_scripts.show_mistake(mistake, (numpy1.__name__,), "cs_python")
