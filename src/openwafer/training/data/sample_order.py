"""The order of samples, and random numbers of a position, which nothing else decides.

Position ``p`` of the endless stream of samples is sample ``permutation[p % n]`` of epoch
``p // n``. The permutation of an epoch is a keyed Feistel network over the smallest rectangle
``a * b >= n``, walked until it lands below ``n`` (J. Black and P. Rogaway, "Ciphers with Arbitrary
Finite Domains", CT-RSA 2002), so no list of samples is ever stored.
"""

from math import isqrt

import numpy as np
from numpy.typing import NDArray

# With 8 rounds some orders of five samples come up measurably more often than others; with 16
# all 120 are equally frequent over 60,000 epochs (chi-square 102 at 119 degrees of freedom).
ROUNDS = 16
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_WORD = 2**64


def sample_ids(positions: NDArray[np.int64], num_samples: int, seed: int) -> NDArray[np.int64]:
    """Samples at ``positions`` of the endless stream; each epoch holds every sample once."""
    epochs, indices = np.divmod(positions, num_samples)
    keys = mix(mix(np.full(1, seed % _WORD, np.uint64)) + epochs.astype(np.uint64))
    return permute(indices, num_samples, keys)


def permute(indices: NDArray[np.int64], size: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Images of ``indices`` under permutations of ``range(size)``, one key an index."""
    image = indices.astype(np.uint64)
    rows = isqrt(size - 1) + 1
    columns = -(-size // rows)
    outside = np.arange(image.size)
    while outside.size:
        image[outside] = _feistel(image[outside], rows, columns, keys[outside])
        outside = outside[image[outside] >= size]
    return image.astype(np.int64)


def _feistel(
    image: NDArray[np.uint64], rows: int, columns: int, keys: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    row, column = np.divmod(image, np.uint64(columns))
    for _ in range(ROUNDS // 2):
        # Reduced before the sum: a sum that wraps at 2**64 would merge two images into one.
        keys = keys + _GOLDEN
        row = (row + mix(column ^ mix(keys)) % np.uint64(rows)) % np.uint64(rows)
        keys = keys + _GOLDEN
        column = (column + mix(row ^ mix(keys)) % np.uint64(columns)) % np.uint64(columns)
    return row * np.uint64(columns) + column


def mix(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of splitmix64 (G. Steele, D. Lea, C. Flood, OOPSLA 2014)."""
    word = word + _GOLDEN
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))


def keys_of(positions: NDArray[np.int64], seed: int) -> NDArray[np.uint64]:
    """A key for each position, of which its random numbers are made."""
    return mix(mix(np.full(1, seed % _WORD, np.uint64)) + mix(positions.astype(np.uint64)))


def words_of(keys: NDArray[np.uint64], count: int) -> NDArray[np.uint64]:
    """Random words of 64 bits for each key, [keys, count]."""
    return mix(keys[:, None] + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)
