"""The host's side: runs compiled programs, moves data, launches functions."""

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from openwafer.lazy_names import lazy_names

if TYPE_CHECKING:
    from openwafer.sdk.host.beside import read_program
    from openwafer.sdk.host.checks import Check
    from openwafer.sdk.host.delays import HostDelays
    from openwafer.sdk.host.line_cycles import LineCycles
    from openwafer.sdk.host.memory_dump import MemoryDump, read_memory_dump
    from openwafer.sdk.host.options import RuntimeOptions
    from openwafer.sdk.host.record import Events, Record, RecordOptions, read_record, record_options
    from openwafer.sdk.host.region import Region
    from openwafer.sdk.host.replaying import Replayed, replay
    from openwafer.sdk.host.runtime import Runtime, Task, host_words
    from openwafer.sdk.host.tensors import DataType, Order, check_writeable, fill, from_region

__all__ = [
    "Check",
    "DataType",
    "Events",
    "HostDelays",
    "LineCycles",
    "MemoryDump",
    "Order",
    "Record",
    "RecordOptions",
    "Region",
    "Replayed",
    "Runtime",
    "RuntimeOptions",
    "Task",
    "check_writeable",
    "fill",
    "from_region",
    "host_words",
    "read_memory_dump",
    "read_program",
    "read_record",
    "record_options",
    "replay",
]

# Loaded when first used: who reads what a run has left needs no simulator.
_PLACES: Final = MappingProxyType(
    {
        "read_program": "beside",
        "Check": "checks",
        "HostDelays": "delays",
        "LineCycles": "line_cycles",
        **dict.fromkeys(("MemoryDump", "read_memory_dump"), "memory_dump"),
        "RuntimeOptions": "options",
        **dict.fromkeys(
            ("Events", "Record", "RecordOptions", "read_record", "record_options"), "record"
        ),
        "Region": "region",
        **dict.fromkeys(("Replayed", "replay"), "replaying"),
        **dict.fromkeys(("Runtime", "Task", "host_words"), "runtime"),
        **dict.fromkeys(("DataType", "Order", "check_writeable", "fill", "from_region"), "tensors"),
    }
)

__getattr__ = lazy_names(__name__, _PLACES)


def __dir__() -> list[str]:
    return __all__
