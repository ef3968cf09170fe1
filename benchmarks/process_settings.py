"""Measures under the environment that the command line of openwafer sets, and leaves no files."""

import os
import signal
import sys

from openwafer.cli.environment import DEFAULTS


def restart_with_settings() -> None:
    """Start the script anew unless it has the settings, which are read when torch is loaded."""
    if not DEFAULTS.keys() <= os.environ.keys():
        os.environ.update({**DEFAULTS, **os.environ})
        os.execv(sys.executable, sys.orig_argv)


def clean_up_when_terminated() -> None:
    """Let SIGTERM end the script as an exit does, so that temporary folders are removed."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
