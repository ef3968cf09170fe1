"""The time of a pass over a model on one system, by the resource that limits it.

A step has a forward pass, one that computes the gradients of activations, and one that computes
those of weights. Transfers overlap with computing, so a pass takes as long as its slowest resource.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from openwafer.planning.memory import Sharding
from openwafer.planning.systems import Fabric, System
from openwafer.planning.throughput.sparse_cores import row_folding, sparse_gain

DENSE_BYTES: Final = 2
"""Of a streamed 16-bit weight."""

TAGGED_BYTES: Final = 4
"""Of a streamed weight with its index, as sparse ones have."""

TOKEN_BYTES: Final = 8
"""Of a token and its label, as they come from the host."""


FLOPS_PER_WEIGHT: Final = 2
"""Of a token in one pass: a product and a sum."""


class Pass(StrEnum):
    """A walk through all layers."""

    FORWARD = "forward"
    RECOMPUTED = "forward again"
    ACTIVATION_GRADIENTS = "gradients of activations"
    WEIGHT_GRADIENTS = "gradients of weights"


TRAINING: Final = (Pass.FORWARD, Pass.ACTIVATION_GRADIENTS, Pass.WEIGHT_GRADIENTS)


class Resource(StrEnum):
    """A part of the system that may be the slowest."""

    COMPUTE = "compute"
    MEMORY = "memory"
    STREAM = "stream"
    ACTIVATIONS = "activations"
    FABRIC = "fabric"
    NETWORK = "network"


@dataclass(frozen=True)
class ModelShape:
    """A model as far as its speed depends on it.

    Attributes:
        parameters: number of parameters that are streamed.
        layers: number of layers.
        width: features of the vector between layers.
        forward_flops: FLOPs of a token, with dense weights.
        backward_flops: FLOPs of a token, without recomputation.
        sparse_parameters: parameters that may be sparse; the others stay dense.
    """

    parameters: float
    layers: int
    width: int
    forward_flops: float
    backward_flops: float
    sparse_parameters: float

    @property
    def flops_per_token(self) -> float:
        """Forward and backward."""
        return self.forward_flops + self.backward_flops

    @property
    def sparse_share(self) -> float:
        """Share of the FLOPs that are products with weights that may be sparse, 2 a weight."""
        return min(FLOPS_PER_WEIGHT * self.sparse_parameters / self.forward_flops, 1.0)

    def kept(self, sparsity: float) -> float:
        """Weights that are not zero."""
        return self.parameters - sparsity * self.sparse_parameters


def transformer(parameters: float, layers: int, width: int, sequence_length: int = 0) -> ModelShape:
    """A dense transformer of ``6 parameters + 12 layers width sequence_length`` FLOPs a token.

    Kaplan et al. 2020, arXiv 2001.08361, section 2.1, attention to all positions counted;
    without a `sequence_length` the attention is left out.
    """
    forward = FLOPS_PER_WEIGHT * parameters + 4 * layers * width * sequence_length
    return ModelShape(parameters, layers, width, forward, 2 * forward, parameters)


@dataclass(frozen=True)
class PassTime:
    """Seconds that a pass keeps each resource busy."""

    by_resource: Mapping[Resource, float]

    @property
    def limit(self) -> Resource:
        """The resource that is busy longest."""
        return max(self.by_resource, key=lambda resource: self.by_resource[resource])

    @property
    def seconds(self) -> float:
        """Of the pass."""
        return self.by_resource[self.limit]

    def times(self, number: int) -> "PassTime":
        """Of so many passes."""
        return PassTime({r: number * seconds for r, seconds in self.by_resource.items()})

    def having(self, resource: Resource, seconds: float) -> "PassTime":
        """The same with one resource busy for so long."""
        return PassTime({**self.by_resource, resource: seconds})


@dataclass(frozen=True)
class Setting:
    """How a system trains a model.

    Attributes:
        utilisation: share of the peak that dense products reach.
        sparsity: share of zeros in the weights that may be sparse.
        is_resident: whether the system holds the weights, so that none are streamed.
        forwards_again: forwards that are repeated to have activations back.
        activation_bytes: bytes that a pass moves between system and host for each token.
        sharding: what systems that hold the weights together divide among themselves.
    """

    utilisation: float
    sparsity: float = 0.0
    is_resident: bool = False
    forwards_again: int = 0
    activation_bytes: float = TOKEN_BYTES
    sharding: Sharding = Sharding.NONE


def pass_time(
    system: System, model: ModelShape, tokens: float, setting: Setting, which: Pass = Pass.FORWARD
) -> PassTime:
    """The time of a pass with `tokens` on one system."""
    num_bytes = weight_bytes(model, setting)
    times = {
        Resource.COMPUTE: _compute_seconds(system, model, tokens, setting, which),
        Resource.ACTIVATIONS: setting.activation_bytes * tokens / system.link.value,
    }
    if setting.is_resident or system.fabric is None:
        times[Resource.MEMORY] = num_bytes / system.memory_rate.value
    if not setting.is_resident:
        times[Resource.STREAM] = stream_seconds(system, model, setting, which)
    if not setting.is_resident and system.fabric is not None:
        times[Resource.FABRIC] = model.layers * broadcast_seconds(
            model.kept(setting.sparsity) / model.layers, system.fabric
        )
    return PassTime(times)


def _compute_seconds(
    system: System, model: ModelShape, tokens: float, setting: Setting, which: Pass
) -> float:
    """Of the products: as many cycles as were simulated, or a share of the peak."""
    flops = _flops(model, which) * tokens
    fabric, simulated = system.fabric, system.simulated
    if fabric is None or simulated is None or setting.is_resident:
        gain = zeros_gain(system, model, tokens, setting)
        return flops / (system.peak.value * setting.utilisation * gain)
    of_pass = {
        Pass.ACTIVATION_GRADIENTS: simulated.delta,
        Pass.WEIGHT_GRADIENTS: simulated.gradient,
    }.get(which, simulated.forward)
    # Attention and norms are in the cycles of these products, as they were in the run.
    dense = min(flops / FLOPS_PER_WEIGHT, model.parameters * tokens)
    products = dense - setting.sparsity * min(model.sparse_parameters * tokens, dense)
    cores = fabric.columns.value * fabric.rows.value
    return products * of_pass.value / (cores * fabric.clock.value)


def zeros_gain(system: System, model: ModelShape, tokens: float, setting: Setting) -> float:
    """How many times as fast products are since zeros are skipped; 1 without a fabric.

    Of the products with sparse weights; those with other weights, and attention, stay as they are.
    """
    if system.fabric is None:
        return 1.0
    folding = row_folding(tokens, system.fabric)
    gain = sparse_gain(model.width, folding, setting.sparsity, system.fabric)
    return 1 / (1 - model.sparse_share + model.sparse_share / gain)


def stream_seconds(
    system: System, model: ModelShape, setting: Setting, which: Pass = Pass.FORWARD
) -> float:
    """Of the weights that come in, or of the gradients that leave: the link has both ways.

    Zeros stay in the store. The indices that tell sparse gradients to be computed come in
    meanwhile, and are no more bytes than the gradients.
    """
    if which is Pass.WEIGHT_GRADIENTS:
        return model.kept(setting.sparsity) * DENSE_BYTES / system.link.value
    return weight_bytes(model, setting) / system.link.value


def weight_bytes(model: ModelShape, setting: Setting) -> float:
    """Of all weights that are not zero, those of sparse weights with their indices."""
    if not setting.sparsity:
        return model.parameters * DENSE_BYTES
    sparse = model.sparse_parameters * (1 - setting.sparsity)
    return (model.parameters - model.sparse_parameters) * DENSE_BYTES + sparse * TAGGED_BYTES


def broadcast_seconds(weights: float, fabric: Fabric) -> float:
    """Of a layer's weights, each a wavelet, dealt to the rows and sent along them.

    A row takes ``B + P + 2 T_R`` cycles for B wavelets over P cores with a ramp of T_R cycles
    (Luczynski et al. 2024, arXiv 2404.15888, section 4); rows work side by side. The sums along
    columns run in a thread of their own, and are counted with the products.
    """
    wavelets = weights / fabric.rows.value
    cycles = wavelets + fabric.columns.value + 2 * fabric.ramp_cycles.value
    return cycles / fabric.clock.value


def balance_tokens(
    system: System, utilisation: float, bytes_per_weight: float = DENSE_BYTES
) -> float:
    """Tokens of a pass that take as long to compute as its weights to stream.

    ``bytes_per_weight * utilisation * peak / (2 link)``: a weight takes 2 FLOP a token. Size and
    sparsity of the model cancel. With fewer tokens the stream limits.
    """
    return bytes_per_weight * utilisation * system.peak.value / (2 * system.link.value)


def _flops(model: ModelShape, which: Pass) -> float:
    if which in (Pass.FORWARD, Pass.RECOMPUTED):
        return model.forward_flops
    return model.backward_flops / 2
