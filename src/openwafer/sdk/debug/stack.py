"""The stack of a PE whose code waits, from the words of its memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from openwafer.sdk.program.debug_info import BY_NUMBER, FrameInfo, FunctionInfo, Place, Resume
from openwafer.sdk.program.program import Program

ReadWord: TypeAlias = Callable[[int], int]
"""Gives a word of the PE's memory."""


@dataclass(frozen=True)
class Frame:
    """A function that waits.

    Attributes:
        function: what is known of it.
        place: number of the place where it waits.
        begin: first word of its frame.
        info: what lies there.
        resume: what of that holds values now.
    """

    function: FunctionInfo
    place: int
    begin: int
    info: FrameInfo
    resume: Resume

    def slot(self, name: str) -> int | None:
        """The word where a slot lies, if it holds its value now."""
        word = dict(self.info.slots).get(name)
        if word is None:
            return None
        # Parameters lie before the word of the callee, and nothing changes them.
        is_kept = name in self.resume.saved or word < self.info.callee
        return self.begin + word if is_kept else None


def frames_of(program: Program, image: int, read: ReadWord) -> list[Frame]:
    """The frames of a PE's code that waits, the innermost first.

    `program` has the frames of the code that runs (:func:`~..program.with_frames`).
    """
    return list(_outermost_first(program, image, read))[::-1]


@dataclass(frozen=True)
class Site:
    """A line of a stack: where a function waits, or where what is expanded there was called."""

    place: Place
    function: str
    is_inlined: bool = False

    def __str__(self) -> str:
        """As people read it."""
        inlined = ", inlined" if self.is_inlined else ""
        return f"{self.place.file}:{self.place.line} ({self.function}{inlined})"


def sites_of(program: Program, frame: Frame) -> Iterator[Site]:
    """The place where a function waits, and those of the expansions that it lies in."""
    place = program.places[frame.place]
    while place.call >= 0:
        yield Site(place, place.inlined, is_inlined=True)
        place = program.places[place.call]
    yield Site(place, frame.function.name)


def _outermost_first(program: Program, number: int, read: ReadWord) -> Iterator[Frame]:
    image, debug = program.images[number], program.debug
    functions = [debug.functions[one] for one in image.names.functions]
    frames = [debug.frames[one] for one in image.names.frames]
    by_name = {one.name: index for index, one in enumerate(functions)}
    index = by_name[image.entries[read(image.stack_base)].function]
    begin = image.stack_base + 1
    while True:
        info, state = frames[index], read(begin)
        if not 1 <= state <= len(info.resumes):
            return
        resume = info.resumes[state - 1]
        yield Frame(functions[index], resume.place, begin, info, resume)
        if resume.callee == "":
            return
        callee = resume.callee
        index = read(begin + info.callee) if callee == BY_NUMBER else by_name[callee]
        begin += info.num_words
