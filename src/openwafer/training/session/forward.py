"""What a model's forward takes of a batch of tokens, its loss, and what is random in it.

No generator's state is saved anywhere: a resumed run draws the numbers of the unbroken one because
every micro-batch of every step sets its own seed, which is a function of the run's seed and of the
position in the run.
"""

import inspect
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
import xxhash
from torch import nn

from openwafer.diagnostics import Diagnostic, Severity, error
from openwafer.training.data import Batch
from openwafer.training.models import loss_of
from openwafer.training.models.loss import LOSS, is_decoding, is_masked, why_not_next_token
from openwafer.training.models.transformers_model import is_of_library
from openwafer.training.stream.execute.micro_batches import Forward

Inputs = Mapping[str, torch.Tensor]
# By these names the transformers library has tables with an embedding for each position.
POSITION_TABLES: Final = ("wpe", "position_embeddings", "embed_positions")
# What models of the library raise for a batch that is not theirs.
REFUSALS: Final = (AttributeError, IndexError, TypeError, ValueError)
# Torch's words for an id that a table of embeddings has no row for.
NO_SUCH_ROW: Final = "index out of range in self"
CHECK_SAMPLES: Final = "check_samples"
_GENERATE = "generate"


def model_inputs(model: nn.Module, batch: Batch) -> Inputs:
    """What of a batch the model's forward takes."""
    inputs = {"input_ids": batch.input_ids, "labels": batch.labels}
    # A model that only looks back needs no mask for padding, which stands at the end.
    if batch.attention_mask is not None and _accepts(model, "attention_mask"):
        inputs["attention_mask"] = batch.attention_mask
    return inputs


def forward_loss(model: nn.Module, inputs: Inputs, name: str = LOSS) -> torch.Tensor:
    """The model's own loss of one micro-batch, a scalar, or another that it returns by a name.

    Raises:
        OpenwaferError: ``model-inputs`` where a model of the transformers library refuses the
            batch, or where there is no embedding for an id; what else a user's own module raises
            comes through as it is.
    """
    try:
        return loss_of(model(**inputs), name)
    except REFUSALS as cause:
        if not is_of_library(model) and str(cause) != NO_SUCH_ROW:
            raise
        reason, remedy = _refusal(model, cause)
        raise error(
            "model-inputs",
            f"{type(model).__name__} refuses a batch of tokens: {reason}",
            notes=tuple(_described(name, tensor) for name, tensor in inputs.items()),
            help=remedy,
        ) from cause


def _refusal(model: nn.Module, cause: Exception) -> tuple[str, str]:
    """Why a model refuses a batch, and what helps."""
    if str(cause) == NO_SUCH_ROW:
        return NO_SUCH_ROW, "give it an embedding for each id and each position"
    config = getattr(model, "config", None)
    is_of_two_texts = getattr(config, "is_encoder_decoder", False)
    if is_of_two_texts and getattr(config, "decoder_start_token_id", None) is None:
        return (
            "decoder_start_token_id is not set, the token with which it begins to write",
            "set decoder_start_token_id in its config.json; T5 and its like take pad_token_id",
        )
    return str(cause), "take a model whose loss compares each token with its label"


@dataclass(frozen=True)
class ModelForward:
    """The forward of one micro-batch, which returns the loss.

    Attributes:
        model: that is run.
        inputs: on the device.
        name: of what is returned in place of the loss.
    """

    model: nn.Module
    inputs: Inputs
    name: str = LOSS

    def __call__(self) -> torch.Tensor:
        """Run it; see :func:`forward_loss`."""
        return forward_loss(self.model, self.inputs, self.name)


def checked_inputs(model: nn.Module, batch: Batch) -> Inputs:
    """As :func:`model_inputs`, once a module's own ``check_samples`` has seen them, if it has one.

    What a loss is made of is not known to the data, such as that a sample holds two answers.
    """
    inputs = model_inputs(model, batch)
    check = getattr(model, CHECK_SAMPLES, None)
    if check is not None:
        check(**inputs, row_ends=batch.row_ends)
    return inputs


def forward_of(model: nn.Module, batch: Batch, device: torch.device, name: str = LOSS) -> Forward:
    """The forward of one micro-batch, whose tensors are on the device; it returns the loss.

    Raises:
        OpenwaferError: what the model's own check of samples raises.
    """
    inputs = {name: tensor.to(device) for name, tensor in checked_inputs(model, batch).items()}
    return ModelForward(model, inputs, name)


def require_tokens(model: nn.Module, sequence_length: int) -> None:
    """Refuse a model that cannot be trained on sequences of so many tokens.

    Raises:
        OpenwaferError: ``model-inputs``, ``model-context-length``.
    """
    main_input = getattr(model, "main_input_name", "input_ids")
    if main_input != "input_ids" or not all(_accepts(model, n) for n in ("input_ids", "labels")):
        taken = ", ".join(inspect.signature(model.forward).parameters)
        raise error(
            "model-inputs",
            f"batches hold input_ids and labels, and the forward of {type(model).__name__} takes: "
            f"{taken}",
            help="train a language model; other models stream in a loop of your own, by "
            "openwafer.stream_weights",
        )
    for name, module in model.named_modules():
        is_table = isinstance(module, nn.Embedding) and name.endswith(POSITION_TABLES)
        if is_table and module.num_embeddings < sequence_length:
            raise error(
                "model-context-length",
                f"batch.sequence_length is {sequence_length}, and {name} of the model has "
                f"{module.num_embeddings} positions",
                help=f"set batch.sequence_length to {module.num_embeddings}",
            )


def remark_on_labels(model: nn.Module) -> Diagnostic | None:
    """A warning for a model of the library that a factory made and that does not predict tokens."""
    if not is_of_library(model):
        return None
    reason = why_not_next_token(type(model), is_decoder=is_decoding(model.config))
    if reason is None:
        return None
    return Diagnostic(
        Severity.WARNING,
        "model-labels",
        f"{type(model).__name__} does not predict the next token: {reason}; labels equal "
        "input_ids, so that it learns to repeat its input",
        help="mask or corrupt the input in a loop of your own, by openwafer.stream_weights",
    )


def remark_on_positions(model: nn.Module, sequence_length: int) -> Diagnostic | None:
    """A warning for a model whose config names fewer positions than it is trained on.

    Models without a table of positions, such as those with rotary ones, compute on behind them.
    """
    positions = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if not isinstance(positions, int) or not 0 < positions < sequence_length:
        return None
    return Diagnostic(
        Severity.WARNING,
        "model-positions",
        f"batch.sequence_length is {sequence_length}, and the config of {type(model).__name__} "
        f"has max_position_embeddings {positions}; what loads an export may end texts there",
        help=f"raise max_position_embeddings to {sequence_length}, or lower batch.sequence_length",
    )


def require_writer(model: nn.Module) -> None:
    """Raise ``model-no-text`` for a model that writes only after it has read another text."""
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise error(
            "model-no-text",
            f"{type(model).__name__} encodes one text and writes another, and here is only one",
            help="export the model, and use generate() of the transformers library",
        )
    if is_of_library(model) and is_masked(type(model)):
        raise error(
            "model-no-text",
            f"{type(model).__name__} finds hidden tokens, and writes no text",
            help="export the model, and use the fill-mask pipeline of the transformers library",
        )


def _described(name: str, tensor: torch.Tensor) -> str:
    span = "" if tensor.is_meta else f", from {int(tensor.min())} to {int(tensor.max())}"
    return f"{name} has the shape {tuple(tensor.shape)}{span}"


def _accepts(model: nn.Module, name: str) -> bool:
    parameters = inspect.signature(model.forward).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    return name in parameters or takes_all


def micro_batch_seed(seed: int, step: int, index: int) -> int:
    """Seed of everything random in the forward of one micro-batch, dropout above all.

    Args:
        seed: of the run.
        step: counted from 0.
        index: of the micro-batch in the global batch, counted from 0.
    """
    return _hash(seed, step, index)


def generation_seed(seed: int, index: int = 0) -> int:
    """Seed under which the tokens that follow the prompt of an index are sampled."""
    return _hash(seed, _GENERATE, index) if index else _hash(seed, _GENERATE)


def seed_micro_batch(seed: int, step: int, index: int) -> None:
    """Set the generators for one micro-batch: torch's on devices in use, Python's and NumPy's."""
    drawn = micro_batch_seed(seed, step, index)
    # For devices that nobody uses yet, torch notes the stack of every call.
    is_cuda_used = torch.cuda.is_initialized()
    (torch if is_cuda_used else torch.default_generator).manual_seed(drawn)
    random.seed(drawn)
    np.random.seed(drawn % 2**32)


def _hash(*position: int | str) -> int:
    # 63 bits, so that the seed is a whole number of every signed 64-bit interface on its way.
    return xxhash.xxh3_64_intdigest(" ".join(map(str, position)).encode()) >> 1
