"""Measures under the environment that the command line of openwafer sets."""

import os
import sys

from openwafer.cli.environment import DEFAULTS


def restart_with_settings() -> None:
    """Start the script anew unless it has the settings, which are read when torch is loaded."""
    if not DEFAULTS.keys() <= os.environ.keys():
        os.environ.update({**DEFAULTS, **os.environ})
        os.execv(sys.executable, sys.orig_argv)
