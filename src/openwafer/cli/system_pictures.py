"""Draws the gain of systems by their number, by zeros, and by tokens in a pass."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from openwafer.cli.pictures import picture
from openwafer.planning.memory import UPDATE_BYTES_PER_WEIGHT
from openwafer.planning.systems import CS2, CS3, H200, Fabric
from openwafer.planning.throughput import (
    Setting,
    balance_tokens,
    critical_batch_tokens,
    folding_tokens,
    greatest_gain,
    sparse_gain,
    speedup_to_loss,
    step_time,
    transformer,
)
from openwafer.planning.throughput.passes import DENSE_BYTES, FLOPS_PER_WEIGHT
from openwafer.replica_steps import Joined, LayerWork, StreamedStep, replica_step

PICTURE_INCHES = (7.5, 4.5)
NUM_DRAWN = 200
COLORS = ("#7c3f98", "#1f5fa8", "#2f8f83", "#7aa33a", "#d09a2c", "#cf5b3f")
MODELS = {"1.3B": 1.3e9, "13B": 13e9, "175B": 175e9, "1T": 1e12, "10T": 10e12, "120T": 120e12}
LAYERS = {"1.3B": 24, "13B": 40, "175B": 96, "1T": 128, "10T": 200, "120T": 400}
"""Of the trainings that are published, to 1T; the others are assumed."""
FEW_NUMBERS = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128, 160, 192)
CHUNK_BYTES = 1 << 20
"""That pass of a layer at once: docs/decisions/0022-weights-go-from-rank-to-rank.md."""
WIDTH = 12_288
FOLDINGS = (1, 6, 30, 150, 994)
GPT_3 = transformer(175e9, 96, WIDTH, 2048)
OFTEN = 0.3
"""The share of the peak that GPT-J reached on a CS-2."""


def draw_pictures(folder: Path) -> Iterator[Path]:
    """Draw each picture into a file in `folder`, which must be there."""
    for name, draw in PICTURES.items():
        with picture(folder / name, PICTURE_INCHES) as axes:
            draw(axes)
            axes.legend(frameon=False)
            axes.spines[["top", "right"]].set_visible(False)
        yield folder / name


def draw_speedup(axes: Any) -> None:
    """Speed-up to a fixed loss against the number of CS-2, from 1.3B to 120T parameters."""
    numbers = np.unique(np.geomspace(1, 192, NUM_DRAWN).round().astype(int))
    own = balance_tokens(CS2, OFTEN)
    axes.plot(numbers, numbers, color="#999999", linestyle="--", label="linear")
    for (name, parameters), color in zip(reversed(MODELS.items()), COLORS, strict=True):
        critical = critical_batch_tokens(parameters)
        gains = [speedup_to_loss(int(number), own, critical) for number in numbers]
        axes.plot(numbers, gains, color=color, label=name)
    axes.set(
        xlabel="CS-2 systems, each with 11,560 tokens a step",
        ylabel="times as fast to the same loss",
    )


def draw_schedule(axes: Any) -> None:
    """Speed-up of the schedule of this program on CS-2, from 1.3B to 120T parameters.

    A solid line counts tokens a second, a dashed one those that bring the loss down.
    """
    own = balance_tokens(CS2, OFTEN)
    axes.plot(FEW_NUMBERS, FEW_NUMBERS, color="#999999", linestyle=":", label="linear")
    for (name, parameters), color in zip(reversed(MODELS.items()), COLORS, strict=True):
        one = schedule_seconds(parameters, LAYERS[name], 1, own)
        faster = [
            number * one / schedule_seconds(parameters, LAYERS[name], number, own)
            for number in FEW_NUMBERS
        ]
        critical = critical_batch_tokens(parameters)
        to_loss = [
            gain * speedup_to_loss(number, own, critical) / number
            for number, gain in zip(FEW_NUMBERS, faster, strict=True)
        ]
        axes.plot(FEW_NUMBERS, faster, color=color, label=name)
        axes.plot(FEW_NUMBERS, to_loss, "--", color=color)
    axes.set(xlabel="CS-2 systems, each with 11,560 tokens a step", ylabel="times as fast")


def schedule_seconds(parameters: float, layers: int, num_systems: int, tokens: float) -> float:
    """A step of like layers, each system with one micro-batch of so many tokens.

    Weights have 2 bytes, as their gradients. A backward makes the forward again, which the busy
    share of the cores counts. There is room for two layers, and systems pass weights on.
    """
    assert CS2.store_rate is not None
    each = parameters / layers
    forward = FLOPS_PER_WEIGHT * each * tokens / (CS2.busy_share * CS2.peak.value)
    update = UPDATE_BYTES_PER_WEIGHT * each / CS2.store_rate.value
    layer = LayerWork(forward, 3 * forward, DENSE_BYTES * each, DENSE_BYTES * each, update)
    room = 2 * layer.weight_bytes
    joined = Joined(
        num_systems,
        link=CS2.network.value,
        hop_seconds=CS2.hop.value,
        store=CS2.store_rate.value,
        adding=CS2.network.value,
        chunk_bytes=CHUNK_BYTES,
    )
    return replica_step(StreamedStep([layer] * layers, num_systems, room), joined).seconds


def draw_sparsity(axes: Any) -> None:
    """Gain of a layer of 12,288 features against the share of weights that is left."""
    assert CS2.fabric is not None
    fabric: Fabric = CS2.fabric
    fewer = np.geomspace(1, 1e5, NUM_DRAWN)
    axes.plot(fewer, fewer, color="#999999", linestyle="--", label="linear")
    for folding, color in zip(reversed(FOLDINGS), COLORS, strict=False):
        gains = [sparse_gain(WIDTH, folding, 1 - 1 / float(f), fabric) for f in fewer]
        tokens = folding_tokens(folding, fabric)
        axes.plot(fewer, gains, color=color, label=f"{tokens:,.0f} tokens a pass, k = {folding}")
    most = greatest_gain(WIDTH, FOLDINGS[-1], fabric)
    axes.annotate(f"{most:,.0f}", (fewer[-1], 1.1 * most), ha="right")
    axes.set(xscale="log", yscale="log", ylim=(0.9, 2 * most))
    axes.set(xlabel="weights / weights that are not zero", ylabel="times as fast as dense")


def draw_roofline(axes: Any) -> None:
    """Speed of a dense step of GPT-3 against the tokens of a pass, weights streamed."""
    tokens = np.geomspace(100, 1e6, NUM_DRAWN)
    for system, color in zip((CS3, CS2, H200), COLORS[1:], strict=False):
        for share, style in ((1.0, "-"), (system.utilisation.value, ":")):
            rates = [
                GPT_3.flops_per_token * t / step_time(system, GPT_3, t, Setting(share)).seconds
                for t in map(float, tokens)
            ]
            label = f"{system.name}, {'all' if share == 1 else f'{share:.2g}'} of the peak"
            axes.plot(tokens, rates, style, color=color, label=label)
    axes.set(xscale="log", yscale="log")
    axes.set(xlabel="tokens of a pass on one system", ylabel="FLOP/s, GPT-3 with streamed weights")


PICTURES: Mapping[str, Callable[[Any], None]] = {
    "speedup-by-systems.png": draw_speedup,
    "speedup-of-the-schedule.png": draw_schedule,
    "speedup-by-zeros.png": draw_sparsity,
    "roofline-of-a-step.png": draw_roofline,
}
"""What draws each picture, by the name of its file."""
