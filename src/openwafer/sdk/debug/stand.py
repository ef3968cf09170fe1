"""A run that stands still: what there is to see, whether or not it can go on."""

from openwafer import json_files
from openwafer.diagnostics import error
from openwafer.sdk.codegen.native import NativeCode
from openwafer.sdk.debug.focus import Focus
from openwafer.sdk.debug.halt import Halt, Reason
from openwafer.sdk.debug.names import PeLook
from openwafer.sdk.debug.stack import Frame, frames_of
from openwafer.sdk.fabric import Simulator
from openwafer.sdk.host.core_file import Core
from openwafer.sdk.host.pe_code import PeCode
from openwafer.sdk.program.debug_info import FrameTable
from openwafer.sdk.program.program import Program, with_frames


class Stand:
    """A machine that stands, and where it does.

    Args:
        program: that it runs.
        simulator: the machine.
        code: of its PEs.
        halt: where it stands.

    Attributes:
        program: with the frames of the code that runs.
        focus: PEs that the user looks at.

    Raises OpenwaferError for a program without debug information.
    """

    def __init__(self, program: Program, simulator: Simulator, code: PeCode, halt: Halt) -> None:
        if not program.debug.functions:
            raise error(
                "debug-no-information",
                "the program has no debug information: no names, and no lines to stop at",
                help="compile it again with cslc, and run that",
            )
        self._code = code
        self._has_frames = isinstance(code.alive, NativeCode)
        if isinstance(code.alive, NativeCode):
            program = with_frames(program, json_files.decode(FrameTable, code.alive.frames))
        self.program = program
        self.simulator = simulator
        self.halt = halt
        self.focus = Focus()

    def frames(self, pe: int) -> list[Frame]:
        """The functions of a PE whose code waits, the innermost first; none for one at rest."""
        if not self._has_frames or not self.simulator.stepping.is_in_code(pe):
            return []
        x, y = self.program.place_of(pe)
        return frames_of(
            self.program,
            int(self.program.image_of[y, x]),
            lambda address: int(self.simulator.read(x, y, address, 1)[0]),
        )

    def look(self, pe: int, frame: int = 0) -> PeLook:
        """Names and values of a PE, as the function of a frame sees them, 0 the innermost."""
        frames = self.frames(pe)
        shown = frames[min(frame, len(frames) - 1)] if frames else None
        return PeLook(self.program, self.simulator, pe, shown, frame)

    def number_of(self, x: int, y: int) -> int:
        """Number of a PE. Raises OpenwaferError outside of the rectangle."""
        width, height = self.program.width, self.program.height
        if not (0 <= x < width and 0 <= y < height):
            raise error(
                "debug-no-pe",
                f"there is no PE ({x}, {y})",
                help=f"the rectangle has {width} columns and {height} rows, counted from 0",
            )
        return self.program.number_of(x, y)

    def name_of(self, pe: int) -> str:
        """A PE by its place, for people."""
        return "PE ({}, {})".format(*self.program.place_of(pe))


def stand_of(core: Core, program: Program) -> Stand:
    """What a run left: a moment that is looked at, and does not go on.

    Raises OpenwaferError as :meth:`~openwafer.sdk.host.core_file.Core.machine_of`.
    """
    head = core.head
    reason = Reason.FAILED if head.failure else Reason.END
    halt = Halt(reason, head.cycle, text=head.failure)
    return Stand(program, *core.machine_of(program), halt)
