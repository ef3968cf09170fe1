"""Wafers and GPUs as their makers publish them.

A figure that nobody published is inferred, and its source says from what.
"""

from collections.abc import Mapping
from typing import Final

from openwafer.figures import Figure, Origin
from openwafer.planning.systems.system import Fabric, Server, System

HOT_CHIPS_33: Final = "Lie, Hot Chips 33 (2021)"
WSE_2_DATA: Final = "Cerebras, WSE-2 data sheet (2021)"
WSE_3_DATA: Final = "Cerebras, WSE-3 announcement (2024)"
WSE_1_DATA: Final = "Lie, Hot Chips 31 (2019)"
STREAMING: Final = "Lie, Harnessing the power of sparsity for large GPT models (2021)"
STENCIL: Final = "Rocki et al. 2020, arXiv 2010.03660"
REDUCE: Final = "Luczynski et al. 2024, arXiv 2404.15888"
ALCF: Final = "ALCF AI testbed documentation"
H200_DATA: Final = "NVIDIA, H200 SXM data sheet (2023)"
A100_DATA: Final = "NVIDIA, A100 80GB SXM data sheet (2021)"


def _published(name: str, value: float, unit: str, source: str) -> Figure:
    return Figure(name, value, unit, Origin.PUBLISHED, source)


def _inferred(name: str, value: float, unit: str, source: str) -> Figure:
    return Figure(name, value, unit, Origin.INFERRED, source)


def usual_hop() -> Figure:
    """Seconds of a message at a level of a network whose own are not known."""
    why = "assumed: one server that receives, adds and sends on at 100 Gb/s or more"
    return _inferred("hop", 10e-6, "s", why)


def _recomputing() -> Figure:
    why = "GPT-J with 60 sequences on a CS-2 leaves 960 GB of activations, which 40 GB do not hold"
    return _inferred("forwards_again", 1, "", why)


def no_recomputing() -> Figure:
    """Forwards that a training made again which is not known to have recomputed."""
    return _inferred("forwards_again", 0, "", "no recomputation is told of that training")


def _wafer_io(name: str, source: str) -> Figure:
    return _published(name, 150e9, "B/s", f"{source}: 1.2 Tb/s each way")


def _server(name: str, peers: float, data: str, host_rate: float, processors: str) -> Server:
    dgx = f"NVIDIA, {name} data sheet"
    return Server(
        systems=_published("systems", 8, "systems", dgx),
        peers=_published("peers", peers, "B/s", data),
        host_memory=_published("host_memory", 2e12, "B", dgx),
        host_rate=_inferred("host_rate", host_rate, "B/s", f"{dgx}: {processors}"),
    )


def sum_cycles() -> Figure:
    """Cycles of a core for each partial sum."""
    why = f"{STREAMING}: copy 1, reset 1, double-wide add 2"
    return _published("sum_cycles", 4, "cycles", why)


def ramp_cycles() -> Figure:
    """Cycles between a core and its router."""
    return _published("ramp_cycles", 2, "cycles", REDUCE)


def core_memory() -> Figure:
    """Bytes of one core, 48 KiB in all generations."""
    return _published("core_memory", 48 * 1024, "B", f"{STENCIL}: 48 KB")


CS1: Final = System(
    name="wse1",
    title="CS-1 with one WSE-1",
    peak=_inferred(
        "peak", 3 * 0.86e15, "FLOP/s", f"{STENCIL}: 0.86 PFLOP/s is about a third of it"
    ),
    utilisation=_inferred("utilisation", 0.303, "", "as on a CS-2; no training is published"),
    forwards_again=_recomputing(),
    memory=_published("memory", 18e9, "B", WSE_1_DATA),
    memory_rate=_published("memory_rate", 9e15, "B/s", WSE_1_DATA),
    link=_wafer_io("link", "Cerebras, CS-1 data sheet (2019)"),
    network=_wafer_io("network", "Cerebras, CS-1 data sheet (2019)"),
    hop=usual_hop(),
    power=_published("power", 20e3, "W", "Cerebras, CS-1 data sheet (2019): at most"),
    streams_weights=False,
    fabric=Fabric(
        columns=_published("columns", 600, "cores", STENCIL),
        rows=_published("rows", 595, "cores", STENCIL),
        lanes=_published("lanes", 4, "multiply-adds", STENCIL),
        clock=_inferred("clock", 0.9e9, "Hz", "the peak / (600 x 595 cores x 8 FLOP)"),
        sum_cycles=sum_cycles(),
        ramp_cycles=ramp_cycles(),
        core_memory=core_memory(),
    ),
)

CS2: Final = System(
    name="cs2",
    title="CS-2 with one WSE-2",
    peak=_inferred("peak", 850_000 * 8 * 0.85e9, "FLOP/s", "850,000 cores x 8 FLOP x 0.85 GHz"),
    utilisation=_inferred(
        "utilisation",
        0.303,
        "",
        f"{ALCF}: GPT-J on two CS-2, 43.7 sequences/s; BERT-large reached 0.18",
    ),
    forwards_again=_recomputing(),
    memory=_published("memory", 40e9, "B", WSE_2_DATA),
    memory_rate=_published("memory_rate", 20e15, "B/s", WSE_2_DATA),
    link=_wafer_io("link", HOT_CHIPS_33),
    network=_wafer_io("network", HOT_CHIPS_33),
    hop=usual_hop(),
    power=_published("power", 23e3, "W", "Cerebras, CS-2 data sheet (2021): at most"),
    store=_published("store", 2.4e15, "B", f"{HOT_CHIPS_33}: the largest"),
    store_rate=_published("store_rate", 4e12, "B/s", STREAMING),
    max_systems=_published("max_systems", 192, "systems", HOT_CHIPS_33),
    fabric=Fabric(
        columns=_published("columns", 750, "cores", "Cerebras, SDK documentation"),
        rows=_published("rows", 994, "cores", "Cerebras, SDK documentation"),
        lanes=_published("lanes", 4, "multiply-adds", HOT_CHIPS_33),
        clock=_published("clock", 0.85e9, "Hz", REDUCE),
        sum_cycles=sum_cycles(),
        ramp_cycles=ramp_cycles(),
        core_memory=core_memory(),
    ),
)

CS3: Final = System(
    name="cs3",
    title="CS-3 with one WSE-3",
    peak=_inferred("peak", 900_000 * 16 * 0.875e9, "FLOP/s", "900,000 cores x 16 FLOP x 0.875 GHz"),
    utilisation=_inferred(
        "utilisation",
        0.285,
        "",
        f"{ALCF}: GPT-J, 44.75 sequences/s; other models reached 0.16 to 0.49",
    ),
    forwards_again=_recomputing(),
    memory=_published("memory", 44e9, "B", WSE_3_DATA),
    memory_rate=_published("memory_rate", 21e15, "B/s", WSE_3_DATA),
    link=_wafer_io("link", ALCF),
    network=_wafer_io("network", ALCF),
    hop=usual_hop(),
    power=_inferred("power", 23e3, "W", f"{WSE_3_DATA}: the power of a CS-2"),
    store=_published("store", 1.2e15, "B", f"{WSE_3_DATA}: the largest"),
    store_rate=_inferred("store_rate", 4e12, "B/s", "as beside a CS-2; none is published"),
    max_systems=_published("max_systems", 2048, "systems", WSE_3_DATA),
    fabric=Fabric(
        columns=_published("columns", 755, "cores", "Cerebras, SDK documentation"),
        rows=_published("rows", 1172, "cores", "Cerebras, SDK documentation"),
        lanes=_inferred("lanes", 8, "multiply-adds", "the peak / (900,000 cores x 2 x clock)"),
        clock=_inferred("clock", 0.875e9, "Hz", "from rates in Cerebras' SDK documentation"),
        sum_cycles=sum_cycles(),
        ramp_cycles=ramp_cycles(),
        core_memory=core_memory(),
    ),
)

H200: Final = System(
    name="h200",
    title="NVIDIA H200 SXM",
    peak=_published("peak", 989.5e12, "FLOP/s", f"{H200_DATA}: half of 1,979 TFLOP/s with zeros"),
    utilisation=_inferred(
        "utilisation", 0.41, "", "Grattafiori et al. 2024, arXiv 2407.21783, table 4: on H100"
    ),
    forwards_again=no_recomputing(),
    memory=_published("memory", 141e9, "B", H200_DATA),
    memory_rate=_published("memory_rate", 4.8e12, "B/s", H200_DATA),
    link=_published("link", 64e9, "B/s", f"{H200_DATA}: PCIe 5, 128 GB/s both ways together"),
    network=_published("network", 50e9, "B/s", "NVIDIA, DGX H200 data sheet: 400 Gb/s a GPU"),
    hop=usual_hop(),
    power=_published("power", 700, "W", f"{H200_DATA}: at most, the GPU alone"),
    server=_server(
        "DGX H200",
        450e9,
        f"{H200_DATA}: NVLink, 900 GB/s both ways together",
        614.4e9,
        "two Xeon 8480C of eight channels of DDR5-4800",
    ),
)

A100: Final = System(
    name="a100",
    title="NVIDIA A100 80GB SXM",
    peak=_published("peak", 312e12, "FLOP/s", A100_DATA),
    utilisation=_published(
        "utilisation", 0.514, "", "Korthikanti et al. 2022, arXiv 2205.05198, table 5: 175B"
    ),
    forwards_again=no_recomputing(),
    memory=_published("memory", 80e9, "B", A100_DATA),
    memory_rate=_published("memory_rate", 2.039e12, "B/s", A100_DATA),
    link=_published("link", 32e9, "B/s", f"{A100_DATA}: PCIe 4, 64 GB/s both ways together"),
    network=_published("network", 25e9, "B/s", "NVIDIA, DGX A100 data sheet: 200 Gb/s a GPU"),
    hop=usual_hop(),
    power=_published("power", 400, "W", f"{A100_DATA}: at most, the GPU alone"),
    server=_server(
        "DGX A100",
        300e9,
        f"{A100_DATA}: NVLink, 600 GB/s both ways together",
        409.6e9,
        "two EPYC 7742 of eight channels of DDR4-3200",
    ),
)

SYSTEMS: Final[Mapping[str, System]] = {s.name: s for s in (CS1, CS2, CS3, H200, A100)}
"""Systems by their names."""

ALIASES: Final[Mapping[str, str]] = {"cs1": "wse1", "wse2": "cs2", "wse3": "cs3"}
"""Other names of the same."""
