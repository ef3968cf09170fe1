"""The gradient noise scale as a method: its key, what refuses it, and the meter that it begins."""

from dataclasses import dataclass

from openwafer.config import InvalidFieldError
from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.methods.activation_sparsity import ActivationKeys
from openwafer.training.methods.noise_scale.meter import (
    NoiseMeter,
    by_examples,
    by_micro_batches,
)
from openwafer.training.methods.seam import Method, RunParts
from openwafer.training.methods.sparsity.method import SparsityKeys
from openwafer.training.noise_scale import Watched
from openwafer.training.session.config import RunConfig


@dataclass(frozen=True)
class NoiseScaleKeys(ActivationKeys, SparsityKeys):
    """The key of the gradient noise scale.

    Attributes:
        noise_scale: whether to measure it, of the normalisation layers' gradients (``norms``) or of
            ``all``; ``null`` does not.
    """

    noise_scale: Watched | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.noise_scale is None:
            return
        if min(self.batch.sizes.all) < 2:
            raise InvalidFieldError(
                "noise_scale",
                "one sample a step does not tell noise from signal",
                help="set batch.size to 2 or more, or leave noise_scale out",
            )
        is_sparse = self.sparsity is not None or self.activation_sparsity is not None
        if self.noise_scale is Watched.ALL and is_sparse:
            raise InvalidFieldError(
                "noise_scale",
                "products that skip zeros do not tell each sample's gradient of their weights",
                help="set noise_scale: norms",
            )

    def methods(self) -> tuple[Method, ...]:
        """See the class that it extends."""
        found = super().methods()
        return found if self.noise_scale is None else (*found, NoiseScale(self, self.noise_scale))


@dataclass(frozen=True)
class NoiseScale(Method):
    """Measures the gradient noise scale of each step of a run."""

    config: RunConfig
    watched: Watched

    key = "noise_scale"
    not_in_stages = "no stage has the gradients of a sample"

    def begin(self, run: RunParts) -> NoiseMeter:
        """The run's meter.

        Raises:
            OpenwaferError: ``noise-scale-systems``, ``noise-scale-layers``.
        """
        batch, systems = self.config.batch, self.config.systems
        if systems > 1:
            raise error(
                "noise-scale-systems",
                f"each of {systems} systems sees the examples of its own micro-batches alone, "
                "and the noise scale is not gathered from them",
                help="train on one system, or leave noise_scale out",
            )
        try:
            return by_examples(run.model, batch, self.watched)
        except OpenwaferError:
            # Whole micro-batches can be told apart in any model.
            if self.watched is Watched.NORMS or batch.fewest_micro_batches < 2:
                raise
            return by_micro_batches(batch)
