"""The methods that a run has: the one list of them."""

from dataclasses import dataclass

from openwafer.config import PathLike
from openwafer.training.methods.activation_sparsity import ActivationKeys
from openwafer.training.methods.averages import AverageKeys
from openwafer.training.methods.law import LawKeys
from openwafer.training.methods.mup import MupKeys
from openwafer.training.methods.noise_scale import NoiseScaleKeys
from openwafer.training.methods.sparsity import SparsityKeys


@dataclass(frozen=True)
class RunConfig(LawKeys, NoiseScaleKeys, ActivationKeys, MupKeys, SparsityKeys, AverageKeys):
    """A run and its methods: every key of the YAML that ``openwafer train`` reads.

    Methods shape a model from the last class to the first: muP after sparsity, activation sparsity
    after both. A method of your own adds its keys, and itself to :meth:`methods`, in a subclass.
    """


def load_config(path: PathLike, overrides: tuple[str, ...] = ()) -> RunConfig:
    """Read a run's config; a run without a name gets that of the file.

    Raises:
        OpenwaferError: every mistake of the file with its place.
    """
    return RunConfig.load(path, overrides)
