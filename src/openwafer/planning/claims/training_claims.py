"""Claims about the time of a training."""

import math
from dataclasses import replace
from typing import Final

from openwafer.figures import Figure
from openwafer.planning.claims.claim import Case, Claim, assumed, computed, published
from openwafer.planning.laws.compute_law import TOKENS_PER_PARAMETER
from openwafer.planning.laws.points import FLOPS_PER_PARAMETER_AND_TOKEN
from openwafer.planning.memory import held_activations, tokens_kept, tokens_recomputed
from openwafer.planning.systems import CS2, CS3, System
from openwafer.planning.systems.published import HOT_CHIPS_33, STREAMING, WSE_3_DATA
from openwafer.planning.throughput import (
    PUBLISHED_RUNS,
    balance_tokens,
    critical_batch_tokens,
    reached_utilisation,
    row_folding,
    sparse_gain,
    tokens_without_overfitting,
    training_seconds,
)

SECONDS_PER_DAY: Final = 24 * 60 * 60
DAYS_PER_YEAR: Final = 365.25
DAYS_PER_MONTH: Final = DAYS_PER_YEAR / 12
LONG_WEEKEND_DAYS: Final = 4
FEW_WEEKS_DAYS: Final = 28
ROUNDED: Final = 1.5
"""One day, month or year, told without a digit behind the point, ends here."""

GPT_3_TOKENS: Final = published("tokens", 300e9, "", "Brown et al. 2020, arXiv 2005.14165")
GPT_3: Final = (96, 12_288)
"""Layers and width."""

FAST_CLOCK: Final = 1.1e9
CEREBRAS_GPT: Final = "Dey et al. 2023, arXiv 2304.03208"
PEAK, OFTEN = 1.0, 0.3
TENFOLD: Final = assumed("gain", 10, "", "what 90% sparsity gives at most")


def share(value: float) -> Figure:
    """The share of the peak that a case reckons with."""
    why = {PEAK: "assumed: all of the peak", OFTEN: "as GPT-J reached on a CS-2"}
    return assumed("utilisation", value, "", why.get(value, "assumed"))


def at_clock(system: System, hertz: float) -> System:
    """A wafer at another clock."""
    assert system.fabric is not None
    peak = system.peak.value * hertz / system.fabric.clock.value
    source = f"at {hertz / 1e9:g} GHz, from which 120 PFLOP/s of 16 CS-2 follow"
    return replace(system, peak=computed("peak", peak, system.peak.unit, source))


def duration(
    assumption: str,
    flops: tuple[Figure, ...],
    cluster: tuple[System, int],
    utilisation: Figure,
    gain: Figure | None = None,
    unit_days: float = 1.0,
) -> Case:
    """A training of the product of `flops`, in days or units of `unit_days` of them."""
    system, num_systems = cluster
    work = math.prod(figure.value for figure in flops)
    faster = gain.value if gain else 1.0
    seconds = training_seconds(work, system, num_systems, utilisation.value, faster)
    units = {1.0: "d", DAYS_PER_MONTH: "mo", DAYS_PER_YEAR: "yr"}
    figure = computed(
        "duration",
        seconds / SECONDS_PER_DAY / unit_days,
        units[unit_days],
        "FLOPs / (systems x peak x utilisation x gain)",
    )
    systems = assumed("systems", num_systems, "", "as claimed")
    inputs = (*flops, systems, system.peak, utilisation, *([gain] if gain else []))
    return Case(assumption, inputs, figure)


def work(parameters: float, tokens: Figure) -> tuple[Figure, ...]:
    """What a dense training takes, as factors."""
    return (
        published(
            "flops_per_parameter_and_token",
            FLOPS_PER_PARAMETER_AND_TOKEN,
            "FLOP",
            "Kaplan et al. 2020, arXiv 2001.08361, section 2.1",
        ),
        assumed("parameters", parameters, "", "as claimed"),
        tokens,
    )


def chinchilla(parameters: float) -> Figure:
    """The tokens that a model of a size is best trained on."""
    return published(
        "tokens",
        TOKENS_PER_PARAMETER * parameters,
        "",
        "20 a parameter: Hoffmann et al. 2022, arXiv 2203.15556",
    )


def kaplan(parameters: float) -> Figure:
    """The least tokens that keep a model of a size from overfitting."""
    source = "Kaplan et al. 2020, arXiv 2001.08361, eq. 4.4"
    return published("tokens", tokens_without_overfitting(parameters), "", source)


def gpt_3_in_a_day() -> Claim:
    """175 billion parameters on 192 CS-2."""
    flops, cluster = work(175e9, GPT_3_TOKENS), (CS2, 192)
    dense = duration("dense, all of the peak", flops, cluster, share(PEAK))
    room = held_activations(CS2.memory.value)
    kept, again = tokens_kept(room, *GPT_3), tokens_recomputed(room, *GPT_3)
    more = assumed("passes more", 5 / 4, "", "five forwards' worth where GPT-J took four")
    fast = (at_clock(CS2, FAST_CLOCK), 192)
    return Claim(
        "GPT-3 in a day on 192 CS-2",
        published("duration", 1, "d", HOT_CHIPS_33),
        most=ROUNDED,
        cases=(
            dense,
            duration("dense, 0.3 of the peak", flops, cluster, share(OFTEN)),
            duration("10x by zeros, 0.3 of the peak", flops, cluster, share(OFTEN), TENFOLD),
            duration("the same at 1.1 GHz", flops, fast, share(OFTEN), TENFOLD),
            duration(
                "90% sparse, a vector a layer kept",
                flops,
                cluster,
                share(OFTEN),
                _gain_of(kept),
            ),
            duration(
                "90% sparse, activations recomputed by groups",
                (*flops, more),
                cluster,
                share(OFTEN),
                _gain_of(again),
            ),
        ),
        implied=(
            computed("gain x utilisation for one day", dense.computed.value, "", "dense duration"),
        ),
        remark="300 billion tokens, as GPT-3 was trained on; a CS-2 has room for too few tokens of "
        "it to gain 10x, unless activations are recomputed by groups of layers, which costs a "
        "forward more",
    )


def _gain_of(tokens: float) -> Figure:
    """What 90% zeros gain in GPT-3 if a CS-2 has room for so many tokens."""
    assert CS2.fabric is not None
    gain = sparse_gain(GPT_3[1], row_folding(tokens, CS2.fabric), 0.9, CS2.fabric)
    return computed("gain", gain, "", f"of {tokens:,.0f} tokens a pass, which have room")


def trillion_in_a_weekend() -> Claim:
    """A trillion parameters, without a number of systems: the largest cluster is taken."""
    cluster, size = (CS2, 192), 1e12
    flops, half = work(size, GPT_3_TOKENS), share(0.5)
    kept = tokens_kept(held_activations(CS2.memory.value), 128, 25_600)
    bound = computed(
        "utilisation", kept / balance_tokens(CS2, PEAK), "", "tokens held / balance tokens"
    )

    def sparse(words: str, tokens: Figure, utilisation: Figure) -> Case:
        words = f"{words}, 10x by zeros, {utilisation.value:.2g} of the peak"
        return duration(words, work(size, tokens), cluster, utilisation, TENFOLD)

    return Claim(
        "1T parameters over a long weekend, 192 CS-2",
        published("duration", LONG_WEEKEND_DAYS, "d", f"{HOT_CHIPS_33}: a long weekend"),
        most=LONG_WEEKEND_DAYS,
        cases=(
            duration("300B tokens, dense, all of the peak", flops, cluster, share(PEAK)),
            sparse("300B tokens", GPT_3_TOKENS, share(OFTEN)),
            sparse("300B tokens", GPT_3_TOKENS, half),
            sparse("300B tokens, a vector a layer kept", GPT_3_TOKENS, bound),
            sparse("3.8T tokens", kaplan(size), half),
            sparse("3.8T tokens", kaplan(size), share(OFTEN)),
            sparse("20T tokens", chinchilla(size), half),
            sparse("20T tokens", chinchilla(size), share(OFTEN)),
        ),
        implied=(
            computed("tokens of a pass, a vector a layer kept", kept, "", "20e9 / (128 x 25,600)"),
            bound,
        ),
        remark="vectors of all 128 layers leave room for too few tokens to hide the stream; "
        "those of groups of layers do not",
    )


def hundred_trillion_in_a_year() -> Claim:
    """100 trillion parameters on 1,000 engines."""
    cluster, size = (CS2, 1000), 100e12
    flops, best = work(size, GPT_3_TOKENS), work(size, chinchilla(size))
    year = DAYS_PER_YEAR
    return Claim(
        "100T parameters in a year on 1,000 CS-2",
        published("duration", 1, "yr", STREAMING),
        most=ROUNDED,
        cases=(
            duration(
                "300B tokens, dense, all of the peak", flops, cluster, share(PEAK), None, year
            ),
            duration(
                "300B tokens, dense, 0.3 of the peak", flops, cluster, share(OFTEN), None, year
            ),
            duration(
                "2,000T tokens, 10x by zeros, all of the peak",
                best,
                cluster,
                share(PEAK),
                TENFOLD,
                year,
            ),
        ),
        implied=(computed("tokens a parameter", 300e9 / size, "", "300e9 / 100e12; 20 are best"),),
    )


def hundred_trillion_in_a_month() -> Claim:
    """The same with sparse weights."""
    cluster, flops, month = (CS2, 1000), work(100e12, GPT_3_TOKENS), DAYS_PER_MONTH
    return Claim(
        "100T parameters, 100x sparse, in a month on 1,000 CS-2",
        published("duration", 1, "mo", STREAMING),
        most=ROUNDED,
        cases=tuple(
            duration(
                f"{words}, 10x on top of the year", flops, cluster, utilisation, TENFOLD, month
            )
            for words, utilisation in (
                ("all of the peak", share(PEAK)),
                ("0.3 of the peak", share(OFTEN)),
            )
        ),
        remark="the year has to include 10x already if 100x are to give a month: 100x alone would "
        "give 3.6 days",
    )


def llama_in_a_day() -> Claim:
    """70 billion parameters on 2,048 CS-3, on the two trillion tokens of Llama 2."""
    cluster = (CS3, 2048)
    tokens = published("tokens", 2e12, "", "Touvron et al. 2023, arXiv 2307.09288")
    flops = work(70e9, tokens)
    total = math.prod(figure.value for figure in flops)
    seen, best = PUBLISHED_RUNS[1].utilisation, PUBLISHED_RUNS[4].utilisation
    needed = reached_utilisation(total, SECONDS_PER_DAY, *cluster)
    batch, critical = 2048 * balance_tokens(CS3, OFTEN), critical_batch_tokens(70e9)
    return Claim(
        "Llama2-70B in a day on 2,048 CS-3",
        published("duration", 1, "d", WSE_3_DATA),
        most=ROUNDED,
        cases=(
            duration("share of the peak as of GPT-J", flops, cluster, seen),
            duration("share of the peak as of Llama2-7B, if 4096 tokens", flops, cluster, best),
        ),
        implied=(
            computed("utilisation for one day", needed, "", "FLOPs / (a day x peak of all)"),
            computed("batch", batch, "tokens", "2,048 x balance tokens at 0.3 of the peak"),
            computed("critical batch", critical, "tokens", "Kaplan et al. 2020, eq. 1.1 and 1.4"),
        ),
        remark="a batch above the critical one takes more tokens to the same loss",
    )


def flor_in_days() -> Claim:
    """6.3 billion parameters on the 64 CS-2 of Condor Galaxy 1."""
    cluster = (CS2, 64)
    flops = work(6.3e9, assumed("tokens", 140e9, "", "from memory: check before you rely on it"))
    total = math.prod(figure.value for figure in flops)
    reached = reached_utilisation(total, 2.5 * SECONDS_PER_DAY, *cluster)
    return Claim(
        "FLOR-6.3B in 2.5 days on 64 CS-2",
        published("duration", 2.5, "d", "Cerebras on Condor Galaxy 1 (2023)"),
        most=2.55,
        cases=(duration("0.3 of the peak", flops, cluster, share(OFTEN)),),
        implied=(computed("utilisation", reached, "", "FLOPs / (2.5 d x peak of all)"),),
        remark="a training that used little of the systems",
    )


def cerebras_gpt_in_weeks() -> Claim:
    """The published FLOPs of seven models."""
    sizes = (2.6e18, 1.3e19, 6.1e19, 2.8e20, 1.1e21, 6.3e21, 2.3e22)
    largest = published("flops", sizes[-1], "FLOP", f"{CEREBRAS_GPT}, table 1")
    family = published("flops", sum(sizes), "FLOP", f"{CEREBRAS_GPT}, table 1")
    return Claim(
        "Cerebras-GPT in a few weeks on at most 16 CS-2",
        published("duration", FEW_WEEKS_DAYS, "d", f"{CEREBRAS_GPT}: a few weeks"),
        most=FEW_WEEKS_DAYS,
        cases=(
            duration("13B on 12 CS-2, 0.3 of the peak", (largest,), (CS2, 12), share(OFTEN)),
            duration("all seven on 16, 0.3 of the peak", (family,), (CS2, 16), share(OFTEN)),
        ),
    )
