"""Deterministic tiny batches, one function for each family of model inputs.

Each takes (seed, size) and returns keyword arguments of the model's forward, labels among them.
B batch, T tokens, C channels, H height, W width, F mel features, S samples.
"""

import torch

VOCAB_SIZE = 96
NUM_TOKENS = 16
IMAGE_SIZE = 16
NUM_CLASSES = 5
NUM_MELS = 8
NUM_SAMPLES = 200
IMAGE_TOKEN = VOCAB_SIZE - 1
FIRST_WORD = 3  # ids below are padding, begin and end
IGNORED = -100

Batch = dict[str, torch.Tensor]


def causal(seed: int, size: int) -> Batch:
    """A language model's batch: the labels are the inputs, shifted by the model."""
    ids_BT = _ids(_generator(seed), size)
    return {"input_ids": ids_BT, "labels": ids_BT.clone()}


def masked(seed: int, size: int) -> Batch:
    """An encoder's batch with padding; about a third of the tokens carry labels."""
    generator = _generator(seed)
    ids_BT = _ids(generator, size)
    chosen_BT = torch.rand(ids_BT.shape, generator=generator) < 0.3
    chosen_BT[:, 0] = True
    mask_BT = torch.ones_like(ids_BT)
    mask_BT[0, -3:] = 0
    labels_BT = ids_BT.masked_fill(~chosen_BT | (mask_BT == 0), IGNORED)
    return {"input_ids": ids_BT, "attention_mask": mask_BT, "labels": labels_BT}


def translation(seed: int, size: int) -> Batch:
    """An encoder-decoder's batch."""
    generator = _generator(seed)
    return {"input_ids": _ids(generator, size), "labels": _ids(generator, size, NUM_TOKENS // 2)}


def image(seed: int, size: int) -> Batch:
    """An image classifier's batch."""
    generator = _generator(seed)
    labels_B = torch.randint(NUM_CLASSES, (size,), generator=generator)
    return {"pixel_values": _pixels(generator, size), "labels": labels_B}


def image_and_text(seed: int, size: int) -> Batch:
    """Pairs for a contrastive loss, which the model computes when asked to."""
    generator = _generator(seed)
    pixels_BCHW = _pixels(generator, size)
    return {
        "input_ids": _ids(generator, size),
        "pixel_values": pixels_BCHW,
        "return_loss": torch.tensor(True),
    }


def image_in_text(seed: int, size: int) -> Batch:
    """Text with the four patches of an image in place of tokens 1 to 4."""
    generator = _generator(seed)
    ids_BT = _ids(generator, size)
    ids_BT[:, 1:5] = IMAGE_TOKEN
    labels_BT = ids_BT.masked_fill(ids_BT == IMAGE_TOKEN, IGNORED)
    return {"input_ids": ids_BT, "pixel_values": _pixels(generator, size), "labels": labels_BT}


def spectrogram(seed: int, size: int) -> Batch:
    """Mel features with a transcript."""
    generator = _generator(seed)
    features_BFT = torch.randn(size, NUM_MELS, 2 * NUM_TOKENS, generator=generator)
    return {"input_features": features_BFT, "labels": _ids(generator, size, NUM_TOKENS // 2)}


def waveform(seed: int, size: int) -> Batch:
    """Raw audio with a transcript, for a CTC loss."""
    generator = _generator(seed)
    samples_BS = torch.randn(size, NUM_SAMPLES, generator=generator)
    return {"input_values": samples_BS, "labels": _ids(generator, size, 5)}


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def _ids(generator: torch.Generator, size: int, num_tokens: int = NUM_TOKENS) -> torch.Tensor:
    return torch.randint(FIRST_WORD, IMAGE_TOKEN, (size, num_tokens), generator=generator)


def _pixels(generator: torch.Generator, size: int) -> torch.Tensor:
    return torch.randn(size, 3, IMAGE_SIZE, IMAGE_SIZE, generator=generator)
