"""What scripts import to ask for a cluster, and to name its faults: here is none."""

import logging
import os
from typing import Any, Final

from openwafer.training.frontends.scripts.compiler import CompilerSettings as DebugArgs

__all__ = [
    "ApplianceNanError",
    "DebugArgs",
    "appliance_environ",
    "collect_wsc_log_settings",
    "get_debug_args",
    "get_level_name",
    "set_default_ini",
    "write_debug_args",
    "wsc_logger",
]

appliance_environ: Final = os.environ
"""The variables that a cluster's workers would get: those of this process."""

wsc_logger: Final = logging.getLogger("openwafer.cluster")
"""A cluster's log, to which nobody writes."""

get_level_name: Final = logging.getLevelName
"""The name of a level of logging, or the level of a name."""


class ApplianceNanError(RuntimeError):
    """A loss that is no finite number; scripts raise it."""


def get_debug_args(path: Any = None) -> DebugArgs:
    """Settings of a cluster's machines: they are taken, and nothing reads them."""
    return DebugArgs()


def set_default_ini(debug_args: DebugArgs, **settings: Any) -> None:
    """Take settings of the vendor's compiler, which nothing reads."""


def write_debug_args(debug_args: DebugArgs, path: Any) -> None:
    """Write no file: there are no machines to debug."""


def collect_wsc_log_settings() -> dict[str, Any]:
    """Levels of a cluster's logs by their names: there are none."""
    return {}
