"""Pipelines and small wafers to place them on."""

from dataclasses import replace

from openwafer.figures import Figure, Origin
from openwafer.planning.placement import LayerLoad, PipelineTask
from openwafer.planning.systems import CS2, System
from openwafer.planning.systems.system import Fabric


def wafer(columns: int, rows: int, core_bytes: float = 1000, sum_cycles: float = 4) -> System:
    """A wafer of so many cores, all of whose peak is reached; a FLOP takes an eighth of a cycle."""
    assert CS2.fabric is not None

    def given(value: float) -> Figure:
        return Figure("", value, "", Origin.GIVEN, "the test")

    fabric: Fabric = replace(
        CS2.fabric,
        columns=given(columns),
        rows=given(rows),
        core_memory=given(core_bytes),
        sum_cycles=given(sum_cycles),
    )
    return replace(CS2, fabric=fabric, utilisation=given(0.75))


def layer(
    name: str = "layer",
    *,
    flops: float = 800,
    state_bytes: float = 100,
    activation_bytes: float = 0,
    output_bytes: float = 1,
    features: int = 64,
) -> LayerLoad:
    """A third of its FLOPs are the forward's."""
    return LayerLoad(
        name, flops / 3, 2 * flops / 3, features, state_bytes, activation_bytes, output_bytes
    )


def pipeline(*layers: LayerLoad, batch_size: int = 1, sequence_length: int = 1) -> PipelineTask:
    """Layers behind each other."""
    return PipelineTask(layers, batch_size, sequence_length)


def gpt_2(layers: int, width: int, batch_size: int = 64) -> PipelineTask:
    """A GPT-2 of sequences of 1,024 tokens by the formulas of Kaplan et al. 2020, table 1.

    A layer leaves 34 bytes a feature and token (Korthikanti et al. 2022, arXiv 2205.05198, section
    4.1, without the scores of attention).
    """
    vocabulary, length = 50_257, 1024
    table = vocabulary * width
    forward = 2 * 12 * width**2 + 4 * width * length

    def made(name: str, flops: float, weights: float, left: float) -> LayerLoad:
        return LayerLoad(name, flops, 2 * flops, width, 16 * weights, left, 2 * width)

    return PipelineTask(
        (
            made("input", 0, table, 2 * width),
            *(made(f"layer {n}", forward, 12 * width**2, 34 * width) for n in range(layers)),
            made("output", 2 * table, table, 6 * vocabulary),
        ),
        batch_size,
        length,
    )
