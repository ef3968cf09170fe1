"""Claims about speed: by the number of systems, and from one system to the next."""

from typing import Final

from openwafer.planning.claims.claim import Case, Claim, assumed, computed, published
from openwafer.planning.claims.training_claims import CEREBRAS_GPT, FAST_CLOCK, at_clock, share
from openwafer.planning.memory import held_activations, tokens_kept
from openwafer.planning.systems import CS2, CS3
from openwafer.planning.systems.published import HOT_CHIPS_33, WSE_3_DATA
from openwafer.planning.throughput import (
    PUBLISHED_RUNS,
    Setting,
    balance_tokens,
    critical_batch_tokens,
    speedup_to_loss,
    step_time,
    transformer,
)

NEAR_LINEAR: Final = 0.9
"""Nine tenths of what linear would be are near-linear here; nobody says where it ends."""

MOST_SYSTEMS: Final = 192
SIZES: Final = {"10B": 10e9, "100B": 100e9, "1T": 1e12, "10T": 10e12, "100T": 100e12}
CEREBRAS_GPT_RUNS: Final = {
    "1.3B": (1.3e9, 24, 2048, 4, 132),
    "2.7B": (2.7e9, 32, 2560, 4, 132),
    "6.7B": (6.7e9, 32, 4096, 16, 65),
    "13B": (12.9e9, 40, 5120, 12, 90),
}
"""Parameters, layers, width, CS-2, and sequences of 2048 tokens on each."""


def near_linear_to_192() -> Claim:
    """Speed-up to a fixed loss, with the least tokens on each system that hide the stream."""
    return Claim(
        "near-linear to 192 CS-2 for 10B to 100T parameters",
        published("speedup", MOST_SYSTEMS, "", HOT_CHIPS_33),
        least=NEAR_LINEAR * MOST_SYSTEMS,
        cases=tuple(
            _speedup(f"{name}, {told} of the peak", size, utilisation)
            for name, size in SIZES.items()
            for told, utilisation in (("all", 1.0), ("0.3", 0.3))
        ),
        remark="to the same loss; steps of fixed tokens on each system scale to all of them",
    )


def _speedup(assumption: str, parameters: float, utilisation: float) -> Case:
    own, critical = balance_tokens(CS2, utilisation), critical_batch_tokens(parameters)
    return Case(
        assumption,
        (
            assumed("systems", MOST_SYSTEMS, "", "as claimed"),
            assumed("parameters", parameters, "", "as claimed"),
            share(utilisation),
            computed("tokens of a system", own, "tokens", "what balances stream and computing"),
            computed("critical batch", critical, "tokens", "Kaplan et al. 2020, eq. 1.1 and 1.4"),
        ),
        computed(
            "speedup",
            speedup_to_loss(MOST_SYSTEMS, own, critical),
            "",
            "n (1 + b / B) / (1 + n b / B)",
        ),
    )


def linear_to_16() -> Claim:
    """Cerebras-GPT's own batches: the same tokens on each system, on one and on all."""
    return Claim(
        "Cerebras-GPT linear within 9% to 16 CS-2",
        published("efficiency", 0.91, "", f"{CEREBRAS_GPT}, table 6"),
        least=0.91,
        most=1.09,
        cases=tuple(_efficiency(name) for name in CEREBRAS_GPT_RUNS),
        remark="published: 1.3B 0.96, 2.7B 0.96, 6.7B 1.05, 13B 1.02 of one CS-2's 111M; what "
        "differs is the efficiency of models, not communication",
    )


def _efficiency(name: str) -> Case:
    parameters, layers, width, num_systems, sequences = CEREBRAS_GPT_RUNS[name]
    model, own = transformer(parameters, layers, width, 2048), sequences * 2048
    room = tokens_kept(held_activations(CS2.memory.value), layers, width)
    micro_batches = -(-own // int(room))
    setting = Setting(CS2.utilisation.value)
    one = step_time(CS2, model, own, setting, 1, micro_batches)
    all_ = step_time(CS2, model, own * num_systems, setting, num_systems, micro_batches)
    return Case(
        f"{name} on {num_systems} CS-2, {own:,} tokens on each",
        (
            published("parameters", parameters, "", CEREBRAS_GPT),
            published("systems", num_systems, "", CEREBRAS_GPT),
            published("tokens of a system", own, "tokens", CEREBRAS_GPT),
            CS2.utilisation,
            CS2.hop,
            computed("step on one", one.seconds, "s", "passes and tail"),
        ),
        computed("efficiency", one.seconds / all_.seconds, "", "step on one / step on all"),
    )


def twice_a_cs_2() -> Claim:
    """GPT-J of others on both, and the peaks."""
    pair, single = PUBLISHED_RUNS[:2]
    rates = single.rate.value / (pair.rate.value / pair.num_systems)
    peaks = CS3.peak.value / CS2.peak.value
    return Claim(
        "a CS-3 is twice a CS-2",
        published("ratio", 2, "", WSE_3_DATA),
        least=1.5,
        most=2.5,
        cases=(
            Case(
                "GPT-J as others measured it, with different releases of the software",
                (single.rate, pair.rate),
                computed("ratio", rates, "", "sequences/s of a system"),
            ),
            Case(
                "peaks", (CS3.peak, CS2.peak), computed("ratio", peaks, "", "peak of a CS-3 / CS-2")
            ),
        ),
    )


def andromeda() -> Claim:
    """The peak of 16 CS-2."""
    slow, fast = CS2, at_clock(CS2, FAST_CLOCK)
    return Claim(
        "120 PFLOP/s dense of 16 CS-2",
        published("peak", 120e15, "FLOP/s", "Cerebras on Andromeda (2022)"),
        least=115e15,
        most=125e15,
        cases=tuple(
            Case(
                words,
                (assumed("systems", 16, "", "as claimed"), system.peak),
                computed("peak", 16 * system.peak.value, "FLOP/s", "16 x peak of a system"),
            )
            for words, system in (("at 0.85 GHz", slow), ("at 1.1 GHz", fast))
        ),
    )
