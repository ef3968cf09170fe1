"""The bf16 form of a model that was built in fp32."""

import copy

import torch
import transformers
from torch import nn

from openwafer.training.models.hollow import without_values
from openwafer.training.models.transformers_model import is_of_library

Dtypes = dict[str, torch.dtype]


def take_bf16_form(model: nn.Module) -> None:
    """Give a model the dtypes of its bf16 form; parameters lose their values, buffers are rounded.

    The fp32 tensors of a module of the transformers library get what `from_pretrained` gives them
    with `dtype=torch.bfloat16`, which leaves some as they are: frequencies of rotary positions, and
    what the architecture names. Those of any other module become bf16, as `module.bfloat16()` has
    it. A parameter has the shape, the dtype and the device it will have, and no memory.
    """
    dtypes = _library_dtypes(model) if is_of_library(model) else {}
    for name, parameter in model.named_parameters():
        if _becomes_bf16(name, parameter, dtypes):
            parameter.data = without_values(parameter, parameter.device, torch.bfloat16)
    for path, module in model.named_modules():
        for name, buffer in module.named_buffers(path, recurse=False):
            if _becomes_bf16(name, buffer, dtypes):
                setattr(module, name.rpartition(".")[2], buffer.to(torch.bfloat16))


def _becomes_bf16(name: str, tensor: torch.Tensor, dtypes: Dtypes) -> bool:
    is_named = dtypes.get(name, torch.bfloat16) is torch.bfloat16
    return tensor.dtype is torch.float32 and is_named


def _library_dtypes(model: "transformers.PreTrainedModel") -> Dtypes:
    """What the library builds in bf16, less what it keeps in fp32 when it reads weights."""
    with torch.device("meta"):
        twin = type(model)._from_config(  # noqa: SLF001
            copy.deepcopy(model.config), dtype=torch.bfloat16
        )
    dtypes = {
        name: tensor.dtype for name, tensor in (*twin.named_parameters(), *twin.named_buffers())
    }
    kept = model._keep_in_fp32_modules_strict  # noqa: SLF001
    if kept:
        pattern = transformers.core_model_loading.build_glob_alternation(list(kept))[0]
        dtypes |= {name: torch.float32 for name in dtypes if pattern.search(name)}
    return dtypes
