from dataclasses import replace

import numpy as np

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.program.program import Program

IMAGES = np.array([[3, 1, 4], [1, 5, 9]], np.int32)
PROGRAM = Program(
    Arch.WSE3, (10, 10), (4, 1), (), IMAGES, np.zeros((2, 3, 0), np.int64), (), IMAGES
)


def test_numbers_go_down_one_column_after_the_other() -> None:
    places = [PROGRAM.place_of(number) for number in range(6)]
    assert places == [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]
    assert [PROGRAM.number_of(x, y) for x, y in places] == list(range(6))


def test_the_image_of_a_number_is_that_of_its_place() -> None:
    turned = replace(PROGRAM, image_of=IMAGES.T.copy())
    assert PROGRAM.images_by_number.tolist() == [3, 1, 1, 5, 4, 9]
    assert turned.images_by_number.tolist() == [3, 1, 4, 1, 5, 9]
