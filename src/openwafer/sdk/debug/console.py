"""The debugger's console: a line, an answer."""

import cmd
import re
from pathlib import Path
from typing import IO, Final

from openwafer.diagnostics import OpenwaferError, counted, error
from openwafer.sdk.debug.breakpoints import FINDING, Breakpoint
from openwafer.sdk.debug.halt import Halt, Reason
from openwafer.sdk.debug.looking import LOOKS, Sight
from openwafer.sdk.debug.session import OTHER_RUN, Debugger, running
from openwafer.sdk.debug.stack import sites_of
from openwafer.sdk.debug.stand import Stand
from openwafer.sdk.program.debug_info import Place, Source
from openwafer.sdk.program.sources import file_digest

_AROUND: Final = 4
"""Lines that `list` shows before and behind the present one."""
_MOST_PES: Final = 8
_BREAK: Final = re.compile(
    r"(?P<what>.+?)(?:\s+at\s+(?P<at>\d+\s+\d+(?:\s+\d+\s+\d+)?))?"
    r"(?:\s+if\s+(?P<condition>.+?))?(?:\s+log\s+(?P<log>.+))?"
)
_WATCH: Final = re.compile(r"(?P<what>.+?)(?:\s+if\s+(?P<condition>.+))?")
_LINE: Final = re.compile(r"(?:(?P<file>\S+):)?(?P<line>\d+)")
_NUMBERED: Final = re.compile(r"(?P<kind>cycle|color)\s+(?P<number>\d+)")
_NAME: Final = re.compile(r"[A-Za-z_][\w.]*")


class Console(cmd.Cmd):
    """Commands of the debugger; `help` lists them.

    Args:
        debugger: of the run, or a core, which is only looked at.
        stdin: lines of commands; None reads from the terminal, with history and completion.
        stdout: answers.
    """

    intro = "Type help for the commands, quit to leave."
    prompt = "(csl) "

    def __init__(
        self, debugger: Stand, stdin: IO[str] | None = None, stdout: IO[str] | None = None
    ) -> None:
        super().__init__(stdin=stdin, stdout=stdout)
        self.use_rawinput = stdin is None
        self._debugger = debugger
        self._program = debugger.program
        self._pe = 0
        self._depth = 0
        self._sources = {one.name: one for one in self._program.debug.sources}
        self._compared: set[str] = set()
        if isinstance(debugger, Debugger):
            debugger.tell = self._say
        else:
            self._show(debugger.halt)

    # How lines are taken.

    def onecmd(self, line: str) -> bool:
        """Do a command; what is wrong with it is told, and nothing ends."""
        try:
            return bool(super().onecmd(line))
        except OpenwaferError as found:
            self._say(str(found))
        except KeyboardInterrupt:
            self._say(f"interrupted at cycle {self._debugger.simulator.cycle:,}")
        return False

    def precmd(self, line: str) -> str:
        """Short forms of commands."""
        word, _, rest = line.strip().partition(" ")
        return f"{_SHORT[word]} {rest}" if word in _SHORT else line

    def default(self, line: str) -> None:
        """Tell of words that are no commands."""
        self._say(f"there is no command {line.split()[0]!r}; help lists them")

    def emptyline(self) -> bool:
        """The last command once more."""
        return self.onecmd(self.lastcmd) if self.lastcmd else False

    def _say(self, text: str) -> None:
        self.stdout.write(f"{text}\n")

    @property
    def _run(self) -> Debugger:
        """The run; refused where there is only a core."""
        return running(self._debugger)

    # Where to stop.

    def do_break(self, rest: str) -> None:
        """break PLACE [at X Y [COLUMNS ROWS]] [if CONDITION] [log MESSAGE]: stop there.

        PLACE is [FILE:]LINE, the NAME of a task or a function, `color N` (a wavelet arrives),
        `cycle N`, or `finding` (a mistake is found). A message is told instead of a stop; {x} in it
        is the value of x.
        """
        found = _BREAK.fullmatch(rest.strip())
        if found is None:
            raise _no_place(rest)
        what, condition, log = found["what"], found["condition"] or "", found["log"] or ""
        at = [int(word) for word in (found["at"] or "").split()]
        pes = self._pes(at) if at else None
        breakpoints = self._run.breakpoints
        if line := _LINE.fullmatch(what):
            wanted = int(line["line"])
            file = line["file"] or self._present().file
            made = breakpoints.add(file, wanted, pes, condition, log)
            self._say_made(made, f"; line {wanted} has no code" * (made.line != wanted))
        elif numbered := _NUMBERED.fullmatch(what):
            number = int(numbered["number"])
            is_cycle = numbered["kind"] == "cycle"
            self._say_made(
                self._run.stop_at_cycle(number)
                if is_cycle
                else breakpoints.add_arrivals(number, pes, condition)
            )
        elif what == "finding":
            self._say_made(breakpoints.add_arrivals(FINDING, pes, condition))
        elif _NAME.fullmatch(what):
            self._say_made(breakpoints.add_function(what, pes, condition, log))
        else:
            raise _no_place(rest)

    def _say_made(self, made: Breakpoint, more: str = "") -> None:
        self._say(f"breakpoint {made}{more}")

    def do_watch(self, rest: str) -> None:
        """watch EXPRESSION [if CONDITION]: stop where what lies there is changed."""
        found = _WATCH.fullmatch(rest.strip())
        if found is None:
            raise error("debug-usage", "nothing is named", help="help watch")
        look, name = self._debugger.look(self._pe, self._depth), found["what"]
        value = look.evaluator.variable(name)
        condition = found["condition"] or ""
        self._say_made(self._run.breakpoints.add_value(name, self._pe, value, condition))

    def do_who(self, rest: str) -> None:
        """who EXPRESSION: go back to before what changed it last."""
        value = self._debugger.look(self._pe, self._depth).evaluator.variable(rest)
        pe = self._pe
        told = self._run.go_to_writer(rest.strip(), pe, value)
        self._show(self._debugger.halt)
        self._say(told)
        self._pe = pe

    def do_delete(self, rest: str) -> None:
        """delete N: take a breakpoint away."""
        self._run.breakpoints.delete(_number(rest))

    def do_ignore(self, rest: str) -> None:
        """ignore N COUNT: let the next COUNT hits of a breakpoint pass."""
        number, count = (_number(word) for word in (*rest.split(), "", "")[:2])
        self._run.breakpoints.ignore(number, count)

    def do_breakpoints(self, _rest: str) -> None:
        """breakpoints: list them, with how often they were hit."""
        for one in self._run.breakpoints:
            self._say(f"{one}, {counted(one.hits, 'hit')}")

    def _pes(self, at: list[int]) -> list[int]:
        x, y, columns, rows = (*at, 1, 1) if len(at) == 2 else at
        places = [(x + i, y + j) for i in range(columns) for j in range(rows)]
        return [self._debugger.number_of(*place) for place in places]

    # How to go.

    def do_continue(self, _rest: str) -> None:
        """continue: go on to the next breakpoint, or to the end."""
        self._show(self._run.go_on())

    def do_step(self, _rest: str) -> None:
        """step: go to the PE's next statement, into functions."""
        self._show(self._run.step(self._pe))

    def do_next(self, _rest: str) -> None:
        """next: go to the next statement, over functions."""
        self._show(self._run.step_over(self._pe))

    def do_finish(self, _rest: str) -> None:
        """finish: go to where the function was called, or to the PE's next task."""
        self._show(self._run.step_out(self._pe))

    def do_cycle(self, rest: str) -> None:
        """cycle N, cycle +N: go on to the end of a cycle, or back to it."""
        word = rest.strip()
        now = self._debugger.simulator.cycle
        target = now + _number(word[1:]) if word.startswith("+") else _number(word)
        self._show(self._run.run_to_cycle(target))

    def do_back(self, _rest: str) -> None:
        """back: undo a step: go back to the statement that the PE has begun last."""
        self._show(self._run.step_back(self._pe))

    def do_rewind(self, _rest: str) -> None:
        """rewind: go back to the last breakpoint before, or to the start."""
        self._show(self._run.go_back())

    def do_quit(self, _rest: str) -> bool:
        """quit: leave."""
        return True

    # What to look at.

    def do_pe(self, rest: str) -> None:
        """pe X Y: look at that PE."""
        words = rest.split()
        if len(words) != 2:
            raise error("debug-usage", "a PE has a column and a row", help="write: pe X Y")
        self._pe, self._depth = self._debugger.number_of(_number(words[0]), _number(words[1])), 0
        self.do_where("")

    def do_where(self, _rest: str) -> None:
        """where: the functions that wait on the PE, the innermost first."""
        frames = self._debugger.frames(self._pe)
        if not frames:
            self._say(f"{self._debugger.name_of(self._pe)} runs no code")
        for depth, frame in enumerate(frames):
            mark = "*" if depth == self._depth else " "
            self._say(f"{mark}{depth} {'; '.join(map(str, sites_of(self._program, frame)))}")

    def do_up(self, _rest: str) -> None:
        """up: look at the function that called."""
        self._look_at_frame(self._depth + 1)

    def do_down(self, _rest: str) -> None:
        """down: look at the function that was called."""
        self._look_at_frame(self._depth - 1)

    def _look_at_frame(self, depth: int) -> None:
        frames = self._debugger.frames(self._pe)
        if not 0 <= depth < len(frames):
            raise error("debug-no-frame", f"{counted(len(frames), 'function')} wait, no more")
        self._depth = depth
        self.do_where("")

    def do_focus(self, rest: str) -> None:
        """focus, focus add X Y [COLUMNS ROWS], focus remove X Y [COLUMNS ROWS]: PEs to look at.

        Those that stop come into it, too; without more words it is listed.
        """
        word, *at = rest.split() or ["list"]
        focus = self._debugger.focus
        if word in ("add", "remove") and len(at) in (2, 4):
            pes = self._pes([_number(one) for one in at])
            if word == "add":
                focus.add(pes)
            else:
                focus.remove(pes)
        elif word != "list" or at:
            raise error("debug-usage", f"this is no focus: {rest!r}", help="help focus")
        for pe in focus:
            frames = self._debugger.frames(pe)
            place = self._program.places[frames[0].place] if frames else "runs no code"
            self._say(f"{'*' if pe == self._pe else ' '}{self._debugger.name_of(pe)}: {place}")

    def do_routes(self, rest: str) -> None:
        """routes: of the PE's colors, with switch positions and what waits there."""
        self._look_at("routes", rest)

    def do_queues(self, rest: str) -> None:
        """queues: of the PE, with the wavelets in them."""
        self._look_at("queues", rest)

    def do_tasks(self, rest: str) -> None:
        """tasks: of the PE, with which are active and blocked."""
        self._look_at("tasks", rest)

    def do_operations(self, rest: str) -> None:
        """operations: operations in flight on the PE, and what they wait for."""
        self._look_at("operations", rest)

    def do_memory(self, rest: str) -> None:
        """memory ADDRESS [, WORDS]: words of memory from a byte address on, as &data + 4."""
        self._look_at("memory", rest)

    def do_code(self, rest: str) -> None:
        """code: instructions of the function around its present place, as the IR has them."""
        self._look_at("code", rest)

    def do_came_from(self, rest: str) -> None:
        """came-from [COLOR [NUMBER]]: where wavelets that came were sent, by default the last."""
        self._look_at("came-from", rest)

    def _look_at(self, name: str, rest: str) -> None:
        sight = Sight(self._debugger, self._pe, self._depth)
        for line in LOOKS[name](sight, rest):
            self._say(line)

    def do_print(self, rest: str) -> None:
        """print EXPRESSION: names, a[2], s.field, p.*, &x, arithmetic, comparisons."""
        look = self._debugger.look(self._pe, self._depth)
        self._say(look.evaluator.text(rest))

    def do_set(self, rest: str) -> None:
        """set EXPRESSION = VALUE: give a variable, an element or a field another value."""
        name, equals, value = rest.partition("=")
        if not equals:
            raise error("debug-usage", f"no value is given: {rest!r}", help="write: set a[2] = 1")
        was_changed = self._run.has_changed
        text = self._run.set(self._pe, name.strip(), value, self._depth)
        self._say(f"{name.strip()} = {text}")
        if not was_changed:
            self._say(OTHER_RUN)

    def do_locals(self, _rest: str) -> None:
        """locals: the function's parameters and variables."""
        look = self._debugger.look(self._pe, self._depth)
        for one in look.locals():
            try:
                self._say(f"{one.name} = {look.values.text(look.value(one))}")
            except OpenwaferError:
                self._say(f"{one.name} has no value here")

    def do_list(self, _rest: str) -> None:
        """list: the source around the present line."""
        place = self._present()
        source = self._sources.get(place.file)
        if source is None:
            raise error("debug-no-source", f"the program does not hold the source {place.file}")
        lines = source.text.splitlines()
        first, last = max(1, place.line - _AROUND), min(len(lines), place.line + _AROUND)
        for number in range(first, last + 1):
            mark = ">" if number == place.line else " "
            self._say(f"{mark}{number:4} {lines[number - 1]}")

    def do_why(self, _rest: str) -> None:
        """why: what PEs wait for."""
        told = self._debugger.simulator.waiting()
        self._say("\n".join(told) if told else "no PE waits for anything")

    # What is shown where the run stands.

    def _present(self) -> Place:
        frames = self._debugger.frames(self._pe)
        if not frames:
            raise error(
                "debug-no-line",
                f"{self._debugger.name_of(self._pe)} runs no code, so it is at no line",
                help="name a file: break pe.csl:12; or look at another PE: pe X Y",
            )
        return self._program.places[frames[min(self._depth, len(frames) - 1)].place]

    def _show(self, halt: Halt) -> None:
        self._depth = 0
        self._debugger.focus.follow(halt)
        if halt.pe is None:
            self._say(f"cycle {halt.cycle:,}, {halt.reason.value}")
            if halt.text:
                self._say(halt.text)
            return
        self._pe = halt.pe
        numbers = ", ".join(map(str, halt.breakpoints))
        told = f"breakpoint {numbers}, " if halt.reason is Reason.BREAKPOINT else ""
        place = self._program.places[halt.place] if halt.place >= 0 else None
        where = f"cycle {halt.cycle:,}, {place or 'at its end'}"
        self._say(f"{told}{self._debugger.name_of(halt.pe)}, {where}")
        if halt.others:
            names = ", ".join(map(self._debugger.name_of, halt.others[:_MOST_PES]))
            more = f" and {len(halt.others) - _MOST_PES} more" * (len(halt.others) > _MOST_PES)
            self._say(f"in the same cycle: {names}{more}")
        if halt.text:
            self._say(halt.text)
        if place is not None:
            self._show_line(place)

    def _show_line(self, place: Place) -> None:
        source = self._sources.get(place.file)
        lines = source.text.splitlines() if source is not None else []
        if source is not None and place.line <= len(lines):
            self._say(f"{place.line:5} {lines[place.line - 1]}")
            self._tell_stale(source)

    def _tell_stale(self, source: Source) -> None:
        """Say once that a file is not what was compiled."""
        if source.name in self._compared:
            return
        self._compared.add(source.name)
        file = Path(source.path)
        if file.is_file() and file_digest(file) != source.digest:
            self._say(f"{file} has changed since: lines are those of what was compiled")


_SHORT: Final = {
    "b": "break",
    "bt": "where",
    "c": "continue",
    "s": "step",
    "n": "next",
    "p": "print",
    "l": "list",
    "q": "quit",
    "EOF": "quit",
    "came-from": "came_from",
}


def _no_place(rest: str) -> OpenwaferError:
    return error("debug-usage", f"this is no place to stop: {rest!r}", help="help break")


def _number(word: str) -> int:
    if not word.strip().isdecimal():
        raise error("debug-usage", f"{word!r} is no number", help="help COMMAND says what it takes")
    return int(word)
