"""The number formats of a run."""

from enum import StrEnum

import torch


class Precision(StrEnum):
    """What is computed and stored in which format."""

    FP32 = "fp32"
    BF16 = "bf16"  # computes under bf16 autocast, weights are fp32
    FP16 = "fp16"  # computes under fp16 autocast with dynamic loss scaling, weights are fp32

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
