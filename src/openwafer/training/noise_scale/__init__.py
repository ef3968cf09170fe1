"""The gradient noise scale: at which batch size more examples no longer pay."""

from openwafer.training.noise_scale.estimators import (
    NoiseEstimate,
    SmoothedNoise,
    estimate_from_examples,
    estimate_noise,
)
from openwafer.training.noise_scale.per_example import ExampleNorms, PerExampleNorms, Watched

__all__ = [
    "ExampleNorms",
    "NoiseEstimate",
    "PerExampleNorms",
    "SmoothedNoise",
    "Watched",
    "estimate_from_examples",
    "estimate_noise",
]
