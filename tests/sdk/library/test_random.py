"""<random>: ranges, moments, and the same numbers from the same seed."""

import numpy as np
import pytest

from openwafer.sdk.program.mailbox import RANDOM_SEED, RANDOM_STEPS
from tests.sdk.library import rig

N = 1000
SOURCE = f"""
const random = @import_module("<random>");
export var halves = @zeros([{N}]f16);
export var singles = @zeros([{N}]f32);
export var normals = @zeros([{N}]f32);
export var powers = @zeros([{N}]u32);
export var first = @zeros([4]u32);
export var again = @zeros([4]u32);
export var from_start = @zeros([2]u32);
fn main() void {{
  for (@range(u16, 2)) |i| {{ from_start[i] = random.random_pow_u32(32); }}
  for (@range(u16, {N})) |i| {{
    halves[i] = random.random_f16(-2.0, 3.0);
    singles[i] = random.random_f32(-1.0, 1.0);
    normals[i] = random.random_normal_f32();
    powers[i] = random.random_pow_u32(5);
  }}
  random.set_global_prng_seed(12345);
  for (@range(u16, 4)) |i| {{ first[i] = random.random_pow_u32(32); }}
  random.set_global_prng_seed(12345);
  for (@range(u16, 4)) |i| {{ again[i] = random.random_pow_u32(32); }}
  finish();
}}
"""


@pytest.fixture(scope="module")
def drawn() -> rig.Device:
    return rig.run(SOURCE)


def shifted(state: int) -> int:
    """The documented generator: 32 bits shift left, bits 22 and 17 feed in."""
    for _ in range(RANDOM_STEPS):
        state = (state << 1 | (state >> 22 ^ state >> 17) & 1) & 0xFFFFFFFF
    return state


def words(seed: int, count: int) -> list[int]:
    states = [seed]
    for _ in range(2 * count):
        states.append(shifted(states[-1]))
    halves = [state & 0xFFFF for state in states[:-1]]
    return [high << 16 | low for high, low in zip(halves[::2], halves[1::2], strict=True)]


def test_the_generator_begins_with_its_known_seed(drawn: rig.Device) -> None:
    assert drawn.read("from_start").tolist() == words(RANDOM_SEED, 2)


def test_a_seed_gives_the_numbers_of_the_shift_register(drawn: rig.Device) -> None:
    assert drawn.read("first").tolist() == words(12345, 4)


def test_the_same_seed_gives_the_same_numbers(drawn: rig.Device) -> None:
    assert drawn.read("again").tolist() == drawn.read("first").tolist()


@pytest.mark.parametrize(
    ("name", "lower", "upper"), [("halves", -2, 3), ("singles", -1, 1), ("powers", 0, 32)]
)
def test_uniform_numbers_stay_in_their_range(
    drawn: rig.Device, name: str, lower: int, upper: int
) -> None:
    values = drawn.read(name).astype(np.float64)
    assert values.min() >= lower
    assert values.max() < upper


@pytest.mark.parametrize(
    ("name", "lower", "upper"), [("halves", -2, 3), ("singles", -1, 1), ("powers", -0.5, 31.5)]
)
def test_uniform_numbers_have_the_moments_of_their_range(
    drawn: rig.Device, name: str, lower: float, upper: float
) -> None:
    values = drawn.read(name).astype(np.float64)
    deviation = (upper - lower) / np.sqrt(12)
    # Four standard errors; of the deviation's estimate for a uniform distribution, too.
    assert abs(values.mean() - (lower + upper) / 2) < 4 * deviation / np.sqrt(N)
    assert abs(values.std() / deviation - 1) < 4 * np.sqrt(0.2 / N)


def test_normal_numbers_have_the_moments_of_the_normal_distribution(drawn: rig.Device) -> None:
    values = drawn.read("normals").astype(np.float64)
    assert abs(values.mean()) < 4 / np.sqrt(N)
    assert abs(values.std() - 1) < 4 / np.sqrt(2 * N)


def test_two_to_the_zero_leaves_only_zero() -> None:
    text = """const random = @import_module("<random>");
    export var x = [1]u32{ 9 };
    fn main() void { x[0] = random.random_pow_u32(0); finish(); }"""
    assert rig.run(text).read("x").tolist() == [0]
