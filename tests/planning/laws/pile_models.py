"""The seven models of Cerebras-GPT: arXiv 2304.03208, table 7; FLOPs are rounded there."""

from functools import cache

from openwafer.planning.laws import ComputeLaw, Fitted, Origin, TrainedPoint, fit_compute_law

LOSSES = {
    2.6e18: 2.608,
    1.3e19: 2.349,
    6.1e19: 2.181,
    2.8e20: 1.997,
    1.1e21: 1.834,
    6.3e21: 1.704,
    2.3e22: 1.572,
}

POINTS = tuple(
    TrainedPoint(loss, flops, tokenizer="gpt2", name=f"{flops:g}", origin=Origin.PUBLISHED)
    for flops, loss in LOSSES.items()
)
CSV = "name,flops,loss,tokenizer,origin\n" + "".join(
    f"{point.name},{point.flops},{point.loss},gpt2,published\n" for point in POINTS
)


@cache
def law_of_pile() -> Fitted[ComputeLaw]:
    """Our fit of the points."""
    return fit_compute_law(POINTS)
