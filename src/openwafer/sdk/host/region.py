"""Regions of PEs that one transfer reaches."""

from collections.abc import Iterator
from dataclasses import dataclass

from openwafer.diagnostics import error
from openwafer.sdk.program.program import Program


@dataclass(frozen=True)
class Region:
    """A rectangle of PEs and the number of elements of each.

    Attributes:
        x: column of the north-west PE in the program's rectangle.
        y: its row.
        width: columns.
        height: rows.
        num_elements: elements of each PE.
        step_x: every how many columns a PE takes part.
        step_y: the same for rows.
    """

    x: int
    y: int
    width: int
    height: int
    num_elements: int
    step_x: int = 1
    step_y: int = 1

    @property
    def shape(self) -> tuple[int, int, int]:
        """(h, w, l) of the tensor: PEs that take part, and elements."""
        across, down = self.ranges
        return len(down), len(across), self.num_elements

    @property
    def ranges(self) -> tuple[range, range]:
        """Columns and rows of the PEs that take part."""
        return (
            range(self.x, self.x + self.width, self.step_x),
            range(self.y, self.y + self.height, self.step_y),
        )

    def pes(self) -> Iterator[tuple[int, int, int, int]]:
        """Row and column in the tensor, then x and y of each PE that takes part."""
        across, down = self.ranges
        for row, y in enumerate(down):
            for column, x in enumerate(across):
                yield row, column, x, y

    def check(self, program: Program) -> None:
        """Raise OpenwaferError unless the region lies in the program's rectangle."""
        if min(self.width, self.height, self.num_elements, self.step_x, self.step_y) < 1:
            raise error("host-region-empty", f"a transfer needs sizes from 1 on, got {self}")
        end = self.x + self.width, self.y + self.height
        if min(self.x, self.y) < 0 or end[0] > program.width or end[1] > program.height:
            raise error(
                "host-region-outside",
                f"the region of {self.width} by {self.height} PEs at ({self.x}, {self.y}) is not "
                f"inside of the rectangle of {program.width} by {program.height}",
                help="coordinates count from the rectangle's north-west PE",
            )
