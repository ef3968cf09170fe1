"""The wafer SDK: a CSL compiler, a cycle-level fabric simulator and the host runtime.

.. code-block:: python

    import openwafer.sdk as wafer

    program = wafer.compile("layout.csl", arch="wse3", params={"size": 4})
    with program.run() as run:
        run["A"] = blocks  # [rows, columns, elements]
        run.launch("main", 1.0)
        y = run["y"]
"""

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from openwafer.lazy_names import lazy_names

if TYPE_CHECKING:
    from openwafer.sdk.csl.options import CompileOptions
    from openwafer.sdk.door.compiled import Compiled, CompileWarning, load
    from openwafer.sdk.door.compiled import compile_layout as compile  # noqa: A004
    from openwafer.sdk.door.one_function import Called, call
    from openwafer.sdk.door.run import Run
    from openwafer.sdk.door.vendor import vendor_modules
    from openwafer.sdk.fabric import (
        Account,
        Edge,
        EventKind,
        Passed,
        Port,
        Side,
        SlotState,
        Transport,
    )
    from openwafer.sdk.host import (
        Check,
        DataType,
        Events,
        HostDelays,
        Order,
        Record,
        RecordOptions,
        Region,
        Runtime,
        RuntimeOptions,
        read_record,
    )
    from openwafer.sdk.profile import (
        CriticalPath,
        Profile,
        path_text,
        profile_text,
        read_profile,
        write_profile,
        write_timeline,
    )
    from openwafer.sdk.profile.critical_path import critical_path
    from openwafer.sdk.profile.wavelets import End, Wavelets, wavelets

__all__ = [
    "Account",
    "Called",
    "Check",
    "CompileOptions",
    "CompileWarning",
    "Compiled",
    "CriticalPath",
    "DataType",
    "Edge",
    "End",
    "EventKind",
    "Events",
    "HostDelays",
    "Order",
    "Passed",
    "Port",
    "Profile",
    "Record",
    "RecordOptions",
    "Region",
    "Run",
    "Runtime",
    "RuntimeOptions",
    "Side",
    "SlotState",
    "Transport",
    "Wavelets",
    "call",
    "compile",
    "critical_path",
    "load",
    "path_text",
    "profile_text",
    "read_profile",
    "read_record",
    "vendor_modules",
    "wavelets",
    "write_profile",
    "write_timeline",
]

# Loaded when first used: the simulator takes a second.
_PLACES: Final = MappingProxyType(
    {
        **dict.fromkeys(("Check", "DataType", "Order", "Region", "Runtime"), "host"),
        **dict.fromkeys(("Events", "Record", "RecordOptions", "read_record"), "host"),
        **dict.fromkeys(("HostDelays", "RuntimeOptions"), "host"),
        **dict.fromkeys(("Compiled", "CompileWarning", "load"), "door.compiled"),
        "compile": "door.compiled:compile_layout",
        **dict.fromkeys(("Called", "call"), "door.one_function"),
        "CompileOptions": "csl.options",
        "Run": "door.run",
        **dict.fromkeys(("Account", "EventKind", "SlotState"), "fabric"),
        **dict.fromkeys(("Edge", "Passed", "Port", "Side", "Transport"), "fabric"),
        **dict.fromkeys(("Profile", "profile_text", "read_profile", "write_profile"), "profile"),
        "write_timeline": "profile",
        **dict.fromkeys(("End", "Wavelets", "wavelets"), "profile"),
        **dict.fromkeys(("CriticalPath", "critical_path", "path_text"), "profile"),
        "vendor_modules": "door.vendor",
    }
)

__getattr__ = lazy_names(__name__, _PLACES)


def __dir__() -> list[str]:
    return __all__
