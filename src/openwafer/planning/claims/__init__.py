"""Compares published claims about wafers and their clusters with what the model computes.

Nothing here is fitted to a claim: the inputs are published figures of the systems, and whether a
claim is supported follows from the two numbers alone.
"""

from openwafer.planning.claims.claim import Case, Claim, Support
from openwafer.planning.claims.claims_file import write_claims
from openwafer.planning.claims.scaling_claims import (
    andromeda,
    linear_to_16,
    near_linear_to_192,
    twice_a_cs_2,
)
from openwafer.planning.claims.training_claims import (
    cerebras_gpt_in_weeks,
    flor_in_days,
    gpt_3_in_a_day,
    hundred_trillion_in_a_month,
    hundred_trillion_in_a_year,
    llama_in_a_day,
    trillion_in_a_weekend,
)
from openwafer.planning.claims.wafer_claims import (
    curves,
    largest_model,
    largest_product,
    saturation,
    tenfold_at_90_percent,
)

__all__ = ["Case", "Claim", "Support", "compute_claims", "write_claims"]


def compute_claims() -> tuple[Claim, ...]:
    """All claims, computed."""
    return (
        gpt_3_in_a_day(),
        trillion_in_a_weekend(),
        hundred_trillion_in_a_year(),
        hundred_trillion_in_a_month(),
        largest_model(),
        tenfold_at_90_percent(),
        saturation(),
        largest_product(),
        linear_to_16(),
        near_linear_to_192(),
        twice_a_cs_2(),
        andromeda(),
        llama_in_a_day(),
        flor_in_days(),
        cerebras_gpt_in_weeks(),
        curves(),
    )
