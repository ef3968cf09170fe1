"""LLaVA (arXiv 2304.08485) on samples that begin with the pixels of an image.

Shapes: B batch, T tokens, P patches.
"""

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from openwafer.training.labels import IGNORED_LABEL


class ImageAndText(nn.Module):
    """LLaVA of the transformers library, whose images come as tokens, one a pixel.

    Args:
        config: as ``LlavaConfig`` takes it; the image's token is none of the tokenizer's.
        first_level: id of the level 0, which those of higher ones follow.
        darkest: the level of a black pixel.
    """

    def __init__(self, config: Mapping[str, Any], first_level: int, darkest: int = 16) -> None:
        super().__init__()
        described = transformers.LlavaConfig(**config)
        described.text_config.use_cache = False
        self.model = transformers.LlavaForConditionalGeneration(described)
        self.image_id: int = described.image_token_id
        self.first_level, self.darkest = first_level, darkest
        vision = described.vision_config
        self.side, self.num_patches = (
            vision.image_size,
            (vision.image_size // vision.patch_size) ** 2,
        )

    def forward(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor) -> object:
        """What the library's model returns for the image and the text behind it.

        Args:
            input_ids: levels of the pixels, row by row, then the text, (B, T).
            labels: (B, T), -100 where nothing is learned.
            attention_mask: (B, T), 0 on padding.
        """
        num_pixels = self.side**2
        levels = input_ids[:, :num_pixels] - self.first_level
        pixels = (levels / self.darkest).unflatten(1, (1, self.side, self.side))
        patches_BP = input_ids.new_full((len(input_ids), self.num_patches), self.image_id)
        return self.model(
            input_ids=torch.cat((patches_BP, input_ids[:, num_pixels:]), 1),
            pixel_values=pixels,
            attention_mask=torch.cat(
                (torch.ones_like(patches_BP), attention_mask[:, num_pixels:]), 1
            ),
            labels=torch.cat(
                (torch.full_like(patches_BP, IGNORED_LABEL), labels[:, num_pixels:]), 1
            ),
        )
