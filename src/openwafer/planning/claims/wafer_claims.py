"""Claims about one wafer: the model that it holds, and its gain from zeros."""

from typing import Final

from openwafer.planning.claims.claim import Case, Claim, assumed, computed, published
from openwafer.planning.claims.scaling_claims import NEAR_LINEAR
from openwafer.planning.memory import (
    STORE_BYTES_PER_WEIGHT,
    held_activations,
    stored_parameters,
    tokens_kept,
    tokens_of_product,
    tokens_recomputed,
)
from openwafer.planning.systems import CS2, Fabric
from openwafer.planning.systems.published import HOT_CHIPS_33, STREAMING
from openwafer.planning.throughput import (
    Setting,
    balance_tokens,
    folding_tokens,
    greatest_gain,
    pass_time,
    sparse_gain,
    transformer,
)

WIDTH: Final = 12_288
"""Features of a layer of GPT-3, for which the gain was shown."""

LARGEST: Final = (120e12, 1000, 100_000)
"""Parameters, layers and width of a transformer of 120 trillion."""


def _fabric() -> Fabric:
    assert CS2.fabric is not None
    return CS2.fabric


def largest_model() -> Claim:
    """Of the store; how fast it would train is another question, and answered beside it."""
    assert CS2.store is not None
    per_weight = published("bytes a weight", STORE_BYTES_PER_WEIGHT, "B", HOT_CHIPS_33)
    _, layers, width = LARGEST
    room, balance = held_activations(CS2.memory.value), balance_tokens(CS2, 1.0)
    kept, again = tokens_kept(room, layers, width), tokens_recomputed(room, layers, width)
    stream = pass_time(CS2, transformer(*LARGEST), kept, Setting(1.0)).seconds
    return Claim(
        "120T parameters on one CS-2",
        published("parameters", 120e12, "", HOT_CHIPS_33),
        least=115e12,
        cases=(
            Case(
                "the largest store, with Adam",
                (CS2.store, per_weight),
                computed("parameters", stored_parameters(CS2.store.value), "", "store / weight"),
            ),
        ),
        implied=(
            computed("seconds to stream all weights once", stream, "s", "2 B a weight at 1.2 Tb/s"),
            computed(
                "tokens of a pass, a vector a layer kept", kept, "", "20e9 / (1000 x 100,000)"
            ),
            computed("tokens of a pass, recomputed", again, "", "20e9 / (2 sqrt(1000) x 100,000)"),
            computed("of the peak at most, kept", kept / balance, "", "over balance tokens"),
            computed("of the peak at most, recomputed", again / balance, "", "over balance tokens"),
        ),
        remark="a claim of capacity: the stream leaves the cores idle nearly all the time",
    )


def tenfold_at_90_percent() -> Claim:
    """The gain shown for a layer of GPT-3, by how many rows work on different tokens."""
    fabric, linear = _fabric(), 10
    return Claim(
        "about 10x by 90% sparsity, 12,288 features",
        published("gain", linear, "", f"{HOT_CHIPS_33}: near-linear"),
        least=NEAR_LINEAR * linear,
        cases=tuple(_gain(folding, fabric) for folding in (1, 30, int(fabric.rows.value))),
        remark="folding of rows is inferred; all rows folded take more tokens than a CS-2 has "
        "room for",
    )


def _gain(folding: int, fabric: Fabric) -> Case:
    tokens = folding_tokens(folding, fabric)
    return Case(
        f"rows folded {folding} times, {tokens:,.0f} tokens a pass",
        (
            assumed("features", WIDTH, "", "as claimed"),
            assumed("sparsity", 0.9, "", "as claimed"),
            assumed("folding", folding, ""),
            fabric.rows,
            fabric.sum_cycles,
        ),
        computed("gain", sparse_gain(WIDTH, folding, 0.9, fabric), "", "core_rate, 0.9 to 0"),
    )


def saturation() -> Claim:
    """The gain that no sparsity exceeds."""
    fabric = _fabric()
    room = held_activations(CS2.memory.value) / WIDTH
    all_rows = folding_tokens(fabric.rows.value, fabric)
    return Claim(
        "gain ends at about 3,000x, 12,288 features",
        published("gain", 3000, "", STREAMING),
        least=2500,
        most=3500,
        cases=tuple(
            Case(
                words,
                (assumed("features", WIDTH, ""), assumed("folding", folding, ""), fabric.rows),
                computed(
                    "gain",
                    greatest_gain(WIDTH, folding, fabric),
                    "",
                    "1 + features x folding / (4 rows)",
                ),
            )
            for words, folding in (
                ("all rows folded", fabric.rows.value),
                ("as many as the tokens of one layer that have room", room / all_rows * 994),
            )
        ),
        implied=(
            computed("tokens of a pass that fold all rows", all_rows, "", "4 x columns x rows"),
            computed(
                "tokens that one layer's activations leave room for", room, "", "20e9 / width"
            ),
        ),
    )


def largest_product() -> Claim:
    """A square product whose weights stream, with tokens enough to be limited by computing."""
    room, balance = held_activations(CS2.memory.value), balance_tokens(CS2, 1.0)
    return Claim(
        "products of 100,000 x 100,000 without blocking",
        published("features", 100_000, "", HOT_CHIPS_33),
        least=100_000,
        cases=(
            Case(
                "tokens enough to hide the stream at all of the peak",
                (CS2.memory, CS2.peak, CS2.link),
                computed("features", room / (2 * balance), "", "20e9 / (2 balance tokens)"),
            ),
        ),
        implied=(
            computed(
                "tokens beside 100,000 features",
                tokens_of_product(room, 100_000),
                "",
                "40 GB / (2 x 100,000 x 2 B)",
            ),
        ),
    )


def curves() -> Claim:
    """Figures of the slides and of the post without numbers on their axes."""
    return Claim(
        "curves of speed-up against systems and sparsity",
        None,
        remark="their axes are pictures: the shapes agree, numbers cannot be compared",
    )
