"""Measures under the threads that the command line of openwafer has: they sleep while they wait."""

import os
import sys


def restart_with_sleeping_threads() -> None:
    """Start the script anew unless OpenMP's wait policy is set: it is read when torch is loaded."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.execv(sys.executable, sys.orig_argv)
