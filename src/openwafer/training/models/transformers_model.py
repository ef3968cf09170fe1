"""Models of the transformers library, built from scratch by name."""

import copy
import difflib
import inspect
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeGuard

import transformers
from huggingface_hub.errors import StrictDataclassError
from torch import nn

from openwafer.config import convert_fields
from openwafer.diagnostics import did_you_mean, error
from openwafer.training.models.attention_pattern import is_sparse_attention
from openwafer.training.models.sparse_attention import register_sparse_attention


class Task(StrEnum):
    """The task that a model is trained for; it chooses the head."""

    CAUSAL_LM = "causal-lm"
    MASKED_LM = "masked-lm"
    SEQ2SEQ_LM = "seq2seq-lm"
    PRETRAINING = "pretraining"
    SEQUENCE_CLASSIFICATION = "sequence-classification"
    TOKEN_CLASSIFICATION = "token-classification"
    QUESTION_ANSWERING = "question-answering"
    IMAGE_CLASSIFICATION = "image-classification"
    IMAGE_TEXT_TO_TEXT = "image-text-to-text"
    AUDIO_CLASSIFICATION = "audio-classification"
    SPEECH_SEQ2SEQ = "speech-seq2seq"
    CTC = "ctc"


# Tasks that have another name in the library.
_NAMES = {Task.SEQ2SEQ_LM: "SEQ_TO_SEQ_CAUSAL_LM", Task.SPEECH_SEQ2SEQ: "SPEECH_SEQ_2_SEQ"}

# Read by every config class without being one of its fields.
UNDECLARED_KEYS = {
    *("num_labels", "attn_implementation", "experts_implementation", "output_attentions"),
    *("rope_theta", "rope_scaling", "name_or_path", "model_type", "transformers_version"),
}
SPECIAL_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")
REFUSALS = (
    *(StrictDataclassError, ValueError, TypeError, KeyError, AttributeError, AssertionError),
    *(ZeroDivisionError, NotImplementedError, ImportError),
)


@dataclass(frozen=True)
class TransformersModel:
    """A model of the transformers library with weights drawn anew.

    Attributes:
        architecture: a class such as ``LlamaForCausalLM``, or a model type such as ``llama``.
        task: the head of a model type; a class has its own.
        config: overrides of the library's config, such as ``{"hidden_size": 512}``.
    """

    kind: Literal["transformers"] = field(default="transformers", kw_only=True)
    architecture: str
    task: Task = Task.CAUSAL_LM
    config: Mapping[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        convert_fields(self)


def build_transformers_model(description: TransformersModel) -> nn.Module:
    """Build the model with the library's own initialisation, in float32.

    Raises:
        OpenwaferError: no such architecture or head, an unknown key, or a config it refuses.
    """
    model_class = find_class(description.architecture, description.task)
    require_known_keys(model_class.config_class, description.config)
    _require_sizes(description.config)
    attention = description.config.get("attn_implementation")
    if is_sparse_attention(attention):
        register_sparse_attention(attention)
    try:
        # The library writes into the nested mappings it is given.
        config = model_class.config_class(**copy.deepcopy(dict(description.config)))
        disable_cache(config)
        model: nn.Module = model_class(config)
    except REFUSALS as cause:
        raise error(
            "model-config",
            f"{model_class.__name__} refuses this config: {cause}",
            notes=tuple(f"{key}: {value!r}" for key, value in description.config.items()),
            help="correct the values, or leave out those whose defaults will do",
        ) from cause
    return model


def _require_sizes(config: Mapping[str, object]) -> None:
    """Refuse what the library takes for an empty range, and so for a model without layers."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            _require_sizes(value)
        is_size = key.startswith(("num_", "n_")) or key.endswith(("_size", "_layers", "_heads"))
        if is_size and isinstance(value, int) and value < 0:
            raise error(
                "model-config",
                f"model.config.{key}: expected at least 0, found {value}",
                help="correct the value, or leave it out for the library's default",
            )


def find_class(architecture: str, task: Task) -> Any:
    """The model class of that name, or the class of a model type with the head for ``task``.

    Raises:
        OpenwaferError: the library has no such name, or the model type no such head.
    """
    if architecture in transformers.CONFIG_MAPPING:
        return head_for(transformers.CONFIG_MAPPING[architecture], task)
    found = getattr(transformers, architecture, None)
    if _is_model(found):
        return found
    raise error(
        "model-architecture",
        f"the transformers library {transformers.__version__} has no architecture {architecture!r}",
        notes=("give a model class (LlamaForCausalLM) or a model type (llama)",),
        help=closest(architecture, [*transformers.CONFIG_MAPPING, *dir(transformers)]),
    )


def closest(word: str, options: Iterable[str]) -> str:
    """A help text that names the closest of too many options to list, or none."""
    return did_you_mean(word, difflib.get_close_matches(word, list(options), n=1))


def _is_model(found: object) -> bool:
    """Whether it is a model's class, and not the parent that an architecture's classes share."""
    return (
        inspect.isclass(found)
        and issubclass(found, transformers.PreTrainedModel)
        and not found.__name__.endswith("PreTrainedModel")
    )


def is_of_library(model: nn.Module) -> TypeGuard["transformers.PreTrainedModel"]:
    """Whether a model is one of the library's: none is where nobody has loaded their class."""
    # It takes seconds to load.
    library = sys.modules.get("transformers.modeling_utils")
    return library is not None and isinstance(model, library.PreTrainedModel)


def heads_for(task: Task) -> Mapping[Any, Any]:
    """The model classes with the head for ``task``, by config class."""
    # The library imports a table when it is first asked for.
    table = f"MODEL_FOR_{_NAMES.get(task, task.name)}_MAPPING"
    heads: Mapping[Any, Any] = getattr(transformers, table)
    return heads


def head_for(config_class: Any, task: Task) -> Any:
    """The model class with the head for ``task``."""
    heads = heads_for(task)
    if config_class in heads:
        found = heads[config_class]
        return found[0] if isinstance(found, tuple) else found
    known = [other.value for other in Task if config_class in heads_for(other)]
    raise error(
        "model-task",
        f"{config_class.model_type} has no head for {task.value}",
        help=f"it has heads for: {', '.join(known)}" if known else "name a model class instead",
    )


def require_known_keys(config_class: Any, overrides: Mapping[str, object]) -> None:
    """Refuse misspelt keys, which the library would store and never read.

    Raises:
        OpenwaferError: keys that neither the config class nor its parts declare.
    """
    accepted = accepted_keys(config_class)
    for key, value in overrides.items():
        if key not in accepted:
            raise error(
                "model-unknown-key",
                f"{config_class.__name__} has no key {key!r}",
                help=did_you_mean(key, own_keys(config_class)),
            )
        if key in config_class.sub_configs and isinstance(value, Mapping):
            part_class = config_class.sub_configs[key]
            if value.get("model_type") in transformers.CONFIG_MAPPING:
                part_class = transformers.CONFIG_MAPPING[value["model_type"]]
            if part_class is not transformers.AutoConfig:
                require_known_keys(part_class, value)


def accepted_keys(config_class: Any) -> set[str]:
    """Keys that a config class reads; special tokens are generation's and count as well."""
    generation = set(transformers.GenerationConfig().to_dict())
    return _declared(config_class) | set(config_class.attribute_map) | UNDECLARED_KEYS | generation


def own_keys(config_class: Any) -> list[str]:
    """Keys that a config class declares beyond those of all classes."""
    return sorted(_declared(config_class) - _declared(transformers.PreTrainedConfig))


def _declared(config_class: Any) -> set[str]:
    return set(inspect.signature(config_class.__init__).parameters) - {"self", "args", "kwargs"}


def tokenizer_keys(model_class: Any, vocab_size: int) -> dict[str, int | None]:
    """What a tokenizer decides of a class's config; nothing for a class without vocabulary."""
    config_class = model_class.config_class
    if "vocab_size" not in accepted_keys(config_class):
        return {}
    is_language_model = (
        config_class in heads_for(Task.CAUSAL_LM)
        and head_for(config_class, Task.CAUSAL_LM) is model_class
    )
    special = dict.fromkeys(SPECIAL_TOKENS) if is_language_model else {}
    return {"vocab_size": vocab_size, **special}


def disable_cache(config: Any) -> None:
    """Keep forward from collecting keys and values, which only generation reads."""
    if hasattr(config, "use_cache"):
        config.use_cache = False
    for name in config.sub_configs:
        part = getattr(config, name)
        if part is not None:
            disable_cache(part)
