"""The Debug Adapter Protocol: what an editor asks of a debugger, and what it is told.

One thread reads, so that a pause, and a client that goes away, are seen while the run goes on; all
else is done in the order in which it is asked for.
"""

import base64
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

from openwafer.diagnostics import OpenwaferError, error
from openwafer.sdk.arch.generation import MEMORY_WORDS, WORD_BYTES
from openwafer.sdk.debug.breakpoints import FINDING, Breakpoint
from openwafer.sdk.debug.disassembly import ROWS, Row, address_of, rows_at
from openwafer.sdk.debug.halt import Halt, Reason
from openwafer.sdk.debug.looking import LOOKS, Sight
from openwafer.sdk.debug.messages import Message, Messages
from openwafer.sdk.debug.names import PeLook
from openwafer.sdk.debug.session import OTHER_RUN, Debugger, running
from openwafer.sdk.debug.stack import Site, sites_of
from openwafer.sdk.debug.stand import Stand
from openwafer.sdk.debug.values import Value
from openwafer.sdk.program.debug_info import Place

Open: TypeAlias = Callable[[Mapping[str, Any]], Stand]
"""Gives the debugger, or the core, of what a client's launch asks for."""
Lists: TypeAlias = Callable[[int, int | None], list[dict[str, Any]]]
"""Gives variables from one number on, so many."""

_CAPABILITIES: Final = {
    "supportsConfigurationDoneRequest": True,
    "supportsConditionalBreakpoints": True,
    "supportsHitConditionalBreakpoints": True,
    "supportsLogPoints": True,
    "supportsFunctionBreakpoints": True,
    "supportsDataBreakpoints": True,
    "supportsStepBack": True,
    "supportsSetVariable": True,
    "supportsEvaluateForHovers": True,
    "supportsExceptionInfoRequest": True,
    "supportsTerminateRequest": True,
    "supportsReadMemoryRequest": True,
    "supportsDisassembleRequest": True,
    "exceptionBreakpointFilters": [
        {"filter": "finding", "label": "Mistakes that are found", "default": False}
    ],
}
_REASONS: Final = {
    Reason.START: "entry",
    Reason.BREAKPOINT: "breakpoint",
    Reason.STEP: "step",
    Reason.CYCLE: "goto",
    Reason.PAUSED: "pause",
    Reason.END: "end",
    Reason.FAILED: "exception",
}
_BYTES_OF_PE: Final = 1 << 20
"""So many addresses of memory has a PE before those of the next one."""
_MOST_INSTRUCTIONS: Final = 1 << 14


class Adapter:
    """Serves one client, from its first request to its last.

    Args:
        messages: from the client and to it.
        open_run: makes its debugger.
    """

    def __init__(self, messages: Messages, open_run: Open) -> None:
        self._messages = messages
        self._open_run = open_run
        self._asked: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._debugger: Stand | None = None
        self._lists: list[Lists] = []
        self._owners: dict[int, tuple[int, int]] = {}
        self._frames: list[tuple[int, int]] = []
        self._set: dict[str, list[int]] = {}
        self._stops_on_entry = True
        self._is_over = False

    def serve(self) -> None:
        """Answer requests until the client disconnects, or goes away."""
        threading.Thread(target=self._read, daemon=True).start()
        while not self._is_over and (message := self._asked.get()) is not None:
            self._answer(message)

    def _read(self) -> None:
        for message in self._messages:
            if message.get("command") in ("pause", "disconnect", "terminate"):
                self._stop_soon()
            self._asked.put(message)
        self._stop_soon()
        self._asked.put(None)

    def _stop_soon(self) -> None:
        if isinstance(self._debugger, Debugger):
            self._debugger.pause()

    def _answer(self, message: Message) -> None:
        command = str(message.get("command"))
        answer = {"type": "response", "request_seq": message.get("seq"), "command": command}
        does = getattr(self, f"_on_{command}", None)
        told_later: Iterator[Message] = iter(())
        try:
            if does is None:
                raise error("debug-no-command", f"there is no request {command!r}")
            told_later = does(message.get("arguments") or {})
            answer |= {"success": True, "body": next(told_later)}
        except OpenwaferError as refused:
            text = refused.diagnostics[0].message
            told = {"id": 1, "format": str(refused).replace("{", "{{").replace("}", "}}")}
            answer |= {"success": False, "message": text, "body": {"error": told}}
        except (AttributeError, LookupError, TypeError, ValueError) as cause:
            told_cause = f"its arguments cannot be read: {cause!r}"
            answer |= {"success": False, "message": f"{command}: {told_cause}"}
        self._messages.send(answer)
        # A run goes on only here, so that a client knows of it, and may ask for a pause.
        try:
            for event in told_later:
                self._messages.send(event)
        except OpenwaferError as refused:
            self._messages.send(self._told(str(refused), "stderr"))
            self._messages.send(self._stopped(self._now.halt))

    @property
    def _now(self) -> Stand:
        if self._debugger is None:
            raise error("debug-no-run", "no run is debugged yet", help="send launch first")
        return self._debugger

    @property
    def _run(self) -> Debugger:
        """The run; refused where there is only a core."""
        return running(self._now)

    # Beginning and end.

    def _on_initialize(self, _arguments: Message) -> Iterator[Message]:
        yield _CAPABILITIES

    def _on_launch(self, arguments: Message) -> Iterator[Message]:
        debugger = self._open_run(arguments)
        if isinstance(debugger, Debugger):
            debugger.tell = lambda text: self._messages.send(self._told(text))
        self._debugger = debugger
        self._stops_on_entry = bool(arguments.get("stopOnEntry", True))
        debugger.focus.put(debugger.number_of(*at) for at in arguments.get("focus", []))
        yield {}
        yield _event("initialized")

    _on_attach = _on_launch

    def _told(self, text: str, category: str = "console") -> Message:
        return _event("output", category=category, output=f"{text}\n")

    def _on_configurationDone(self, _arguments: Message) -> Iterator[Message]:  # noqa: N802
        stand = self._now
        yield {}
        is_to_go = isinstance(stand, Debugger) and not self._stops_on_entry
        yield self._stopped(self._run.go_on() if is_to_go else stand.halt)

    def _on_disconnect(self, _arguments: Message) -> Iterator[Message]:
        self._is_over = True
        yield {}

    def _on_terminate(self, _arguments: Message) -> Iterator[Message]:
        yield {}
        yield _event("terminated")

    # Where to stop.

    def _on_setBreakpoints(self, arguments: Message) -> Iterator[Message]:  # noqa: N802
        source = arguments["source"]
        name = source.get("path") or source["name"]
        file = self._source_name(name)

        def make(asked: Message) -> Breakpoint:
            options = asked.get("condition", ""), asked.get("logMessage", "")
            return self._run.breakpoints.add(file, int(asked["line"]), None, *options)

        yield {"breakpoints": self._made(f"lines of {name}", arguments["breakpoints"], make)}

    def _on_setFunctionBreakpoints(self, arguments: Message) -> Iterator[Message]:  # noqa: N802
        def make(asked: Message) -> Breakpoint:
            return self._run.breakpoints.add_function(
                asked["name"], None, asked.get("condition", "")
            )

        yield {"breakpoints": self._made("functions", arguments["breakpoints"], make)}

    def _on_dataBreakpointInfo(self, arguments: Message) -> Iterator[Message]:  # noqa: N802
        name = arguments["name"]
        if reference := arguments.get("variablesReference"):
            found = self._variables(reference, 0, None)
            (name,) = [one["evaluateName"] for one in found if one["name"] == name]
            pe, depth = self._owners[reference]
            look = self._now.look(pe, depth)
        else:
            pe, look = self._look(arguments.get("frameId"))
        look.evaluator.variable(name)
        yield {
            "dataId": f"{pe} {look.depth} {name}",
            "description": f"{name} on {self._now.name_of(pe)} changes",
            "accessTypes": ["write"],
        }

    def _on_setDataBreakpoints(self, arguments: Message) -> Iterator[Message]:  # noqa: N802
        def make(asked: Message) -> Breakpoint:
            pe, depth, name = asked["dataId"].split(" ", 2)
            value = self._now.look(int(pe), int(depth)).evaluator.variable(name)
            condition = asked.get("condition", "")
            return self._run.breakpoints.add_value(name, int(pe), value, condition)

        yield {"breakpoints": self._made("data", arguments["breakpoints"], make)}

    def _on_setExceptionBreakpoints(self, arguments: Message) -> Iterator[Message]:  # noqa: N802
        asked: list[Message] = [{}] if "finding" in arguments["filters"] else []
        self._made("findings", asked, lambda _: self._run.breakpoints.add_arrivals(FINDING))
        yield {}

    def _made(
        self, kind: str, asked: Sequence[Message], make: Callable[[Message], Breakpoint]
    ) -> list[Message]:
        """Put breakpoints in place of those of a kind; one that is refused says why."""
        for number in self._set.pop(kind, []):
            self._run.breakpoints.delete(number)
        own, told = self._set.setdefault(kind, []), list[Message]()
        for one in asked:
            try:
                made = make(one)
            except OpenwaferError as refused:
                told.append({"verified": False, "message": refused.diagnostics[0].message})
                continue
            own.append(made.number)
            if one.get("hitCondition"):
                self._run.breakpoints.ignore(made.number, int(one["hitCondition"]) - 1)
            told.append({"id": made.number, "verified": True, "line": made.line or None})
        return told

    def _source_name(self, path: str) -> str:
        """The program's name of a file of the client's."""
        known = self._now.program.debug.sources
        same = [one.name for one in known if Path(one.path) == Path(path)]
        return same[0] if same else Path(path).name

    # How to go.

    def _on_continue(self, _arguments: Message) -> Iterator[Message]:
        is_over = self._run.halt.reason is Reason.END
        yield {"allThreadsContinued": True}
        yield _event("terminated") if is_over else self._stopped(self._run.go_on())

    def _on_reverseContinue(self, _arguments: Message) -> Iterator[Message]:  # noqa: N802
        debugger = self._run
        yield {}
        yield self._stopped(debugger.go_back())

    def _on_stepIn(self, arguments: Message) -> Iterator[Message]:  # noqa: N802
        return self._gone(arguments, Debugger.step)

    def _on_next(self, arguments: Message) -> Iterator[Message]:
        return self._gone(arguments, Debugger.step_over)

    def _on_stepOut(self, arguments: Message) -> Iterator[Message]:  # noqa: N802
        return self._gone(arguments, Debugger.step_out)

    def _on_stepBack(self, arguments: Message) -> Iterator[Message]:  # noqa: N802
        return self._gone(arguments, Debugger.step_back)

    def _gone(self, arguments: Message, step: Callable[[Debugger, int], Halt]) -> Iterator[Message]:
        run, pe = self._run, self._pe(arguments)
        yield {}
        yield self._stopped(step(run, pe))

    def _on_pause(self, _arguments: Message) -> Iterator[Message]:
        # The run stands by now.
        self._run.go_unpaused()
        yield {}

    def _stopped(self, halt: Halt) -> Message:
        self._lists, self._frames = [], []
        pe = self._now.focus.follow(halt)
        reason = _REASONS[halt.reason]
        hit = halt.breakpoints
        is_data = bool(hit) and any(one.words for one in self._run.breakpoints if one.number in hit)
        return _event(
            "stopped",
            reason="data breakpoint" if is_data else reason,
            description=f"cycle {halt.cycle:,}, {halt.reason.value}",
            text=halt.text,
            threadId=pe + 1,
            allThreadsStopped=True,
            hitBreakpointIds=list(halt.breakpoints),
        )

    # What to look at.

    def _on_threads(self, _arguments: Message) -> Iterator[Message]:
        yield {"threads": [{"id": pe + 1, "name": self._now.name_of(pe)} for pe in self._now.focus]}

    def _on_focus(self, arguments: Message) -> Iterator[Message]:
        self._now.focus.put([self._now.number_of(*at) for at in arguments["pes"]])
        yield {}

    def _on_stackTrace(self, arguments: Message) -> Iterator[Message]:  # noqa: N802
        pe, shown = self._pe(arguments), []
        for depth, frame in enumerate(self._now.frames(pe)):
            code = address_of(self._now.program, pe, frame)
            for site in sites_of(self._now.program, frame):
                self._frames.append((pe, depth))
                shown.append(self._frame(len(self._frames), site, code))
        first, most = int(arguments.get("startFrame", 0)), int(arguments.get("levels", 0))
        part = shown[first : first + most if most else None]
        yield {"stackFrames": part, "totalFrames": len(shown)}

    def _frame(self, number: int, site: Site, code: int) -> Message:
        place, name = site.place, f"{site.function}{' (inlined)' * site.is_inlined}"
        where = {"line": place.line, "column": place.column, "source": self._source(place)}
        return {"id": number, "name": name, **where, "instructionPointerReference": hex(code)}

    def _source(self, place: Place) -> Message:
        sources = {one.name: one for one in self._now.program.debug.sources}
        source: Message = {"name": Path(place.file).name}
        if place.file in sources:
            known = list(sources)
            is_there = Path(sources[place.file].path).is_file()
            source |= {"path": sources[place.file].path}
            source |= {} if is_there else {"sourceReference": known.index(place.file) + 1}
        return source

    def _on_source(self, arguments: Message) -> Iterator[Message]:
        number = int(arguments.get("sourceReference") or arguments["source"]["sourceReference"])
        yield {"content": self._now.program.debug.sources[number - 1].text}

    def _on_scopes(self, arguments: Message) -> Iterator[Message]:
        pe, look = self._look(arguments["frameId"])
        names = {
            "Locals": [one.name for one in look.locals()],
            "Globals": [one.name for one in look.globals()],
        }
        scopes = [
            {
                "name": name,
                "expensive": False,
                "variablesReference": self._listed(pe, look, self._of_names(look, pe, own)),
            }
            for name, own in names.items()
        ]
        yield {"scopes": scopes}

    def _on_variables(self, arguments: Message) -> Iterator[Message]:
        first, count = arguments.get("start", 0), arguments.get("count") or None
        yield {"variables": self._variables(arguments["variablesReference"], first, count)}

    def _on_evaluate(self, arguments: Message) -> Iterator[Message]:
        pe, look = self._look(arguments.get("frameId"))
        expression = arguments["expression"]
        if (lines := self._seen(arguments, pe, look)) is not None:
            yield {"result": "\n".join(lines), "variablesReference": 0}
            return
        result = look.evaluator.result(expression)
        if isinstance(result, Value):
            shown = self._shown(pe, look, expression, result)
            yield {"result": shown["value"], **shown}
        else:
            yield {"result": look.evaluator.bare_text(expression), "variablesReference": 0}

    def _seen(self, arguments: Message, pe: int, look: PeLook) -> Iterable[str] | None:
        """What the console would show, where a person asks for that in an editor's console."""
        word, _, rest = arguments["expression"].strip().partition(" ")
        is_asked = arguments.get("context") == "repl" and word in LOOKS
        if not is_asked or look.evaluator.is_name(word):
            return None
        return LOOKS[word](Sight(self._now, pe, look.depth), rest)

    def _on_readMemory(self, arguments: Message) -> Iterator[Message]:  # noqa: N802
        pe, begin = divmod(int(arguments["memoryReference"], 0), _BYTES_OF_PE)
        first, asked = begin + int(arguments.get("offset", 0)), max(0, int(arguments["count"]))
        num = min(asked, WORD_BYTES * MEMORY_WORDS - first) if first >= 0 else 0
        data = self._now.look(self._known(pe)).read(first, num) if num > 0 else b""
        yield {
            "address": hex(pe * _BYTES_OF_PE + max(0, first)),
            "data": base64.b64encode(data).decode(),
            "unreadableBytes": asked - len(data),
        }

    def _on_disassemble(self, arguments: Message) -> Iterator[Message]:
        begin = int(arguments["memoryReference"], 0) + int(arguments.get("offset", 0))
        rows = dict(enumerate(rows_at(self._now.program, begin), begin // ROWS * ROWS))
        first = begin + int(arguments.get("instructionOffset", 0))
        asked = int(arguments["instructionCount"])
        if asked > _MOST_INSTRUCTIONS:
            told = f"{asked:,} instructions are asked for, and an answer has {_MOST_INSTRUCTIONS:,}"
            raise error("debug-too-many", told, help="ask for them in parts, by instructionOffset")
        addresses = range(first, first + asked)
        yield {"instructions": [self._instruction(one, rows.get(one)) for one in addresses]}

    def _instruction(self, address: int, row: Row | None) -> Message:
        if row is None:
            return {"address": hex(address), "instruction": "", "presentationHint": "invalid"}
        told = {"address": hex(address), "instruction": row.text.strip()}
        if row.place < 0:
            return told
        place = self._now.program.places[row.place]
        where = {"location": self._source(place), "line": place.line, "column": place.column}
        return told | where

    def _on_setVariable(self, arguments: Message) -> Iterator[Message]:  # noqa: N802
        found = self._variables(arguments["variablesReference"], 0, None)
        (one,) = [one for one in found if one["name"] == arguments["name"]]
        pe, depth = self._owners[arguments["variablesReference"]]
        was_changed = self._run.has_changed
        yield {"value": self._run.set(pe, one["evaluateName"], arguments["value"], depth)}
        if not was_changed:
            yield self._told(OTHER_RUN)

    def _on_exceptionInfo(self, _arguments: Message) -> Iterator[Message]:  # noqa: N802
        text = self._now.halt.text
        code = text.partition("[")[2].partition("]")[0]
        yield {"exceptionId": code, "description": text, "breakMode": "always"}

    # Variables.

    def _listed(self, pe: int, look: PeLook, lists: Lists) -> int:
        self._lists.append(lists)
        self._owners[len(self._lists)] = pe, look.depth
        return len(self._lists)

    def _variables(self, number: int, first: int, count: int | None) -> list[Message]:
        if not 0 < number <= len(self._lists):
            raise error("debug-stale", "these variables are of a stop that is over")
        return self._lists[number - 1](first, count)

    def _of_names(self, look: PeLook, pe: int, names: Sequence[str]) -> Lists:
        def shown(name: str) -> Message:
            try:
                return self._shown(pe, look, name, look.evaluator.variable(name))
            except OpenwaferError:
                return {"name": name, "value": "has no value here", "variablesReference": 0}

        return lambda first, count: [
            shown(name) for name in names[first : None if count is None else first + count]
        ]

    def _shown(self, pe: int, look: PeLook, name: str, value: Value) -> Message:
        kind, parts = look.values.type_of(value), look.values.parts(value)
        reference, memory = 0, pe * _BYTES_OF_PE
        if parts:

            def inner(first: int, count: int | None) -> list[Message]:
                chosen = parts[first : None if count is None else first + count]
                return [
                    {**self._shown(pe, look, f"{name}{part}", get()), "name": part.lstrip(".")}
                    for part, get in chosen
                ]

            reference = self._listed(pe, look, inner)
        return {
            "name": name,
            "value": look.values.text(value),
            "type": kind.name,
            "evaluateName": name,
            "variablesReference": reference,
            **({} if value.address is None else {"memoryReference": hex(memory + value.address)}),
            **({"indexedVariables": len(parts)} if kind.shape else {}),
        }

    def _look(self, frame: int | None) -> tuple[int, PeLook]:
        """The PE of a frame's number, and what is seen there; of none the first PE in focus."""
        if not frame:
            pe = next(iter(self._now.focus))
            return pe, self._now.look(pe)
        if not 0 < frame <= len(self._frames):
            raise error("debug-stale", "this frame is of a stop that is over")
        pe, depth = self._frames[frame - 1]
        return pe, self._now.look(pe, depth)

    def _pe(self, arguments: Message) -> int:
        return self._known(int(arguments["threadId"]) - 1)

    def _known(self, pe: int) -> int:
        """A PE by its number, which is refused where there is none."""
        return self._now.number_of(*self._now.program.place_of(pe))


def _event(name: str, **body: Any) -> Message:
    return {"type": "event", "event": name, "body": body}
