"""Source texts and places in them, shared by every reader of files: YAML, CSL, IR text."""

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class Position:
    """A place as people count it: line and column start at 1, columns are code points."""

    line: int
    column: int


@dataclass(frozen=True)
class SourceText:
    """A named text. Offsets are code points from its start; lines end at a newline."""

    name: str
    text: str

    @cached_property
    def _line_starts(self) -> tuple[int, ...]:
        return (0, *(offset + 1 for offset, char in enumerate(self.text) if char == "\n"))

    @property
    def num_lines(self) -> int:
        """Number of lines; a text that ends in a newline has an empty last line."""
        return len(self._line_starts)

    def position(self, offset: int) -> Position:
        """Line and column of `offset`, which may be one past the end of the text."""
        if not 0 <= offset <= len(self.text):
            raise ValueError(
                f"offset {offset} is outside {self.name} of {len(self.text)} characters"
            )
        line = bisect_right(self._line_starts, offset)
        return Position(line, offset - self._line_starts[line - 1] + 1)

    def line(self, number: int) -> str:
        """Text of line `number`, counted from 1, without its line end."""
        if not 1 <= number <= self.num_lines:
            raise ValueError(f"line {number} is outside {self.name} of {self.num_lines} lines")
        start = self._line_starts[number - 1]
        end = self._line_starts[number] - 1 if number < self.num_lines else len(self.text)
        return self.text[start:end].removesuffix("\r")


@dataclass(frozen=True)
class Span:
    """The characters of `source` from `start` up to, not including, `end`."""

    source: SourceText
    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.end <= len(self.source.text):
            raise ValueError(
                f"span {self.start}..{self.end} is outside {self.source.name} "
                f"of {len(self.source.text)} characters"
            )

    @property
    def text(self) -> str:
        """The characters themselves."""
        return self.source.text[self.start : self.end]
