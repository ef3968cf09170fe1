"""How a model reports its loss, and whether that is the loss of a text's next token."""

from collections.abc import Mapping
from typing import Any, Final

from torch import Tensor

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.models.checkpoint_folder import CheckpointFolder, class_and_config
from openwafer.training.models.transformers_model import (
    Task,
    TransformersModel,
    find_class,
    head_for,
    heads_for,
)

LOSS: Final = "loss"


def loss_of(output: object, name: str = LOSS) -> Tensor:
    """The loss in what forward returned: ``output.loss``, ``output["loss"]``, or the scalar itself.

    Args:
        output: of forward.
        name: of another scalar that the output holds in the same way, in place of the loss.

    Raises:
        OpenwaferError: there is none, or it is not a scalar that gradients can start from.
    """
    match output:
        case Tensor() if name == LOSS:
            found: object = output
        case Mapping():
            found = output.get(name)
        case _ if not isinstance(output, Tensor) and hasattr(output, name):
            found = getattr(output, name)
        case _:
            raise _no_scalar(
                f"forward returned {type(output).__name__}, which holds no {name}", name
            )
    if not isinstance(found, Tensor):
        message = f"the {name} in the {type(output).__name__} of forward is {found!r:.60}"
        raise _no_scalar(message, name)
    if found.ndim or not found.is_floating_point():
        raise _no_scalar(f"the {name} has shape {tuple(found.shape)} and type {found.dtype}", name)
    return found


def _no_scalar(message: str, name: str) -> OpenwaferError:
    is_loss = name == LOSS
    scalar = "a scalar, or " if is_loss else ""
    return error(
        "model-loss",
        message,
        notes=(f'forward must return {scalar}an object or mapping with a scalar "{name}"',),
        help="does the batch hold labels?" if is_loss else "leave it out for the loss",
    )


# Text alone will do for the second, too.
TEXT_TASKS: Final = (Task.CAUSAL_LM, Task.IMAGE_TEXT_TO_TEXT)
# Model types whose own loss compares a token with the label at its place, beside the decoders of
# encoder-decoder models, which all do.
UNSHIFTED: Final = frozenset({"cpmant", "trocr", "xlm", "xlnet"})

LEARNERS: Final = {
    Task.MASKED_LM: ("data.masking", "masked language models"),
    Task.SEQ2SEQ_LM: ("data.span_corruption", "models of an encoder and a decoder"),
}
"""What makes of texts what these learn, and their name."""

# Encoders that have no head for masked tokens.
ENCODERS: Final = frozenset({"bert-generation"})


def require_text_loss(
    description: CheckpointFolder | TransformersModel, learns: Task = Task.CAUSAL_LM
) -> None:
    """Refuse a model whose own loss is not what a run on texts trains.

    Args:
        description: of the model.
        learns: what it is to learn: to write the next token, to find hidden ones (masked-lm), or
            to write what was left out of another text (seq2seq-lm).

    Raises:
        OpenwaferError: ``model-task``, and what a description without a model raises.
    """
    match description:
        case CheckpointFolder(path=folder):
            model_class, config = class_and_config(description)
            is_decoder = is_decoding(config)
            found = f"{folder} {'holds' if description.task is None else 'leads to'}"
        case TransformersModel():
            model_class = find_class(description.architecture, description.task)
            is_decoder = bool(description.config.get("is_decoder"))
            found = "model describes"
    config_class = model_class.config_class
    if learns in LEARNERS:
        key, models = LEARNERS[learns]
        is_fit = _has_head(model_class, learns)
        reason = None if is_fit else f"{key} trains {models}, and this is none"
        remedy = f"set model.task: {learns}, or leave {key} out"
    else:
        reason = why_not_next_token(model_class, is_decoder=is_decoder)
        remedy = _remedy(config_class)
    if reason is not None:
        raise error(
            "model-task",
            f"{found} {model_class.__name__} (model type {config_class.model_type}): {reason}",
            help=remedy,
        )


def is_decoding(config: Any) -> bool:
    """Whether a config says that its encoder is used as a decoder; most have no such key."""
    return bool(vars(config).get("is_decoder"))


def why_not_next_token(model_class: Any, *, is_decoder: bool) -> str | None:
    """Why a model's own loss is not that of the next token of a text; ``None`` where it is.

    Args:
        model_class: of the library.
        is_decoder: what its config says of that.
    """
    config_class = model_class.config_class
    if not any(_has_head(model_class, task) for task in TEXT_TASKS):
        return "a run on texts trains causal language models, and this is none"
    if config_class.is_encoder_decoder or config_class.model_type in UNSHIFTED:
        return "its loss compares each token with itself, and not with the next one"
    is_encoder = config_class in heads_for(Task.MASKED_LM) or config_class.model_type in ENCODERS
    if is_encoder and not is_decoder:
        return "with is_decoder: false each token sees the next one, which it is to predict"
    return None


def is_masked(model_class: Any) -> bool:
    """Whether a class of the library finds hidden tokens."""
    return _has_head(model_class, Task.MASKED_LM)


def is_of_texts(model_class: Any) -> bool:
    """Whether a class of the library computes something for each token of a text."""
    tasks = (*TEXT_TASKS, Task.MASKED_LM, Task.SEQ2SEQ_LM)
    return any(_has_head(model_class, task) for task in tasks)


def _has_head(model_class: Any, task: Task) -> bool:
    if model_class.config_class not in heads_for(task):
        return False
    found = heads_for(task)[model_class.config_class]
    return model_class in (found if isinstance(found, tuple) else (found,))


def _remedy(config_class: Any) -> str:
    if config_class in heads_for(Task.CAUSAL_LM):
        causal = head_for(config_class, Task.CAUSAL_LM)
        if why_not_next_token(causal, is_decoder=False) is None:
            return f"set model.task: causal-lm, which takes {causal.__name__}"
    is_maskable = config_class in heads_for(Task.MASKED_LM)
    return (
        "name a causal language model, such as a LlamaForCausalLM; "
        + ("set data.masking for a masked one; " if is_maskable else "")
        + ("set data.span_corruption for such a model; " if config_class.is_encoder_decoder else "")
        + "other models stream in a loop of your own, by openwafer.stream_weights"
    )
