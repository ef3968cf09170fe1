"""The number formats of a run."""

from enum import StrEnum

import torch


class Precision(StrEnum):
    """What forwards compute in."""

    FP32 = "fp32"  # no autocast: computes in the format of the weights
    BF16 = "bf16"  # computes under bf16 autocast
    FP16 = "fp16"  # computes under fp16 autocast with dynamic loss scaling

    @property
    def autocast_dtype(self) -> torch.dtype | None:
        """Dtype of the autocast that forwards run under."""
        match self:
            case Precision.FP32:
                return None
            case Precision.BF16:
                return torch.bfloat16
            case Precision.FP16:
                return torch.float16

    @property
    def weight_dtype(self) -> torch.dtype:
        """The format itself, for weights that are written in it."""
        return self.autocast_dtype or torch.float32


class Weights(StrEnum):
    """What weights are streamed and computed with."""

    FP32 = "fp32"
    BF16 = "bf16"  # rounded from fp32 masters, to which the store applies the updates

    @property
    def dtype(self) -> torch.dtype:
        """The format as torch names it."""
        return Precision(self).weight_dtype


class MatmulPrecision(StrEnum):
    """What `torch.set_float32_matmul_precision` takes; less may be faster on some devices."""

    HIGHEST = "highest"
    HIGH = "high"
    MEDIUM = "medium"
