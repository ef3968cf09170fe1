"""The host's side of a run: load a program, copy and stream data, launch functions.

Operations run in the order in which they are asked for. One that does not block waits in a queue
until one that does, or `stop`, comes; a queued receive lets launches and sends that stand behind it
go first, since it only takes what the device sends.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from openwafer.config import PathLike, path_of
from openwafer.diagnostics import Diagnostic, OpenwaferError, error
from openwafer.sdk.fabric import Account, Passed, Print, Scope, Simulator, findings
from openwafer.sdk.host import copies, core_file, tensors
from openwafer.sdk.host.arguments import raw_arguments
from openwafer.sdk.host.beside import keep_program, read_program
from openwafer.sdk.host.checks import Check, Warnings, as_errors
from openwafer.sdk.host.copies import region_memory
from openwafer.sdk.host.ending import Ending, judged_at_end
from openwafer.sdk.host.final_state import write_if_asked
from openwafer.sdk.host.instruction_trace import InstructionTrace
from openwafer.sdk.host.journal import Journal, Recorder, path_of_environment
from openwafer.sdk.host.line_cycles import BookedRun, CodeCounters, LineCycles, not_counted
from openwafer.sdk.host.memory_dump import MemoryDump, dump_memory
from openwafer.sdk.host.operations import (
    CopyFrom,
    CopyTo,
    Interpreter,
    Launch,
    Operation,
    Receive,
    ReceivePort,
    ReceiveRest,
    Send,
    SendPort,
    Stop,
    Wait,
    Words,
)
from openwafer.sdk.host.options import DEFAULT, RuntimeOptions
from openwafer.sdk.host.pe_code import Form
from openwafer.sdk.host.record import (
    CarryOut,
    RecordFile,
    Recording,
    record_of_environment,
    record_options,
    scope_of,
)
from openwafer.sdk.host.region import Region
from openwafer.sdk.host.sim_log import (
    SimLog,
    wants_instructions,
    wants_landings,
    warn_of_debug_words,
)
from openwafer.sdk.host.symbols import HostSymbols
from openwafer.sdk.host.tensors import DataType, Order
from openwafer.sdk.host.time_bins import TimeBins, bins_of
from openwafer.sdk.program.digest import digest_of
from openwafer.sdk.program.program import HostName, Program

_MAX_ARGUMENT: Final = 0xFFFFFFFF
_OVERRUN_CODES: Final = (findings.OVERRUN_CODE, "host-overrun")
"""Of operations of PEs, and of copies."""


Taker: TypeAlias = Callable[[Words], None]


class Task:
    """An operation asked for; `dest` takes the words that it gives the host."""

    def __init__(self, operation: Operation, dest: Taker | None = None) -> None:
        self.operation = operation
        self.is_done = False
        self._dest = dest

    def end(self, words: Words | None) -> None:
        """It was carried out."""
        if self._dest is not None and words is not None:
            self._dest(words)
        self.is_done = True


class Runtime:
    """Runs one compiled program on the simulated fabric.

    Args:
        program: a program, or the compiler's output folder.
        options: how to simulate.

    Raises:
        OpenwaferError: there is no program in the folder, or it is damaged.
    """

    def __init__(self, program: Program | PathLike, options: RuntimeOptions = DEFAULT) -> None:
        if not isinstance(program, Program):
            program = read_program(path_of(program, "program"))
        self.program = program
        self.symbols = HostSymbols(program)
        self._options = options
        self._rules = options.rules()
        self._simulator: Simulator | None = None
        self._counters: CodeCounters | None = None
        self._bins: TimeBins | None = None
        self._log: SimLog | None = None
        self._warnings = Warnings()
        self._pending: list[Task] = []
        self._is_running = False
        self._is_stopped = False

    def load(self) -> None:
        """Put code and data on the fabric; the first time, the code is compiled for this CPU."""
        options = self._options
        landings = options.log_folder is not None and wants_landings()
        is_traced = options.log_folder is not None and wants_instructions()
        warn_of_debug_words()
        # The simulator calls the code by address: it has to live as long.
        record = record_options(options.record or record_of_environment())
        scope = Scope() if is_traced and record is None else scope_of(record)
        counts = options.has_line_cycles or is_traced
        self._simulator, self._code = self._rules.machine_of(
            self.program,
            options.threads,
            has_landings=landings,
            has_account=options.has_account or is_traced,
            form=Form.COUNTING if counts else Form.PLAIN,
            scope=scope,
        )
        if counts:
            self._counters = CodeCounters(self.program, self._simulator)
            self._bins = bins_of(self.program, self._simulator)
        self._interpreter = Interpreter(self.symbols, self._simulator, self._warnings, self._rules)
        self._carry_out = self._cored(self._kept(self._interpreter))
        if record is not None:
            file = RecordFile(record.path, self.program, record.scope)
            self._carry_out = Recording(self._carry_out, self._simulator, file).carry_out
        check = self._rules.check
        self._ending = Ending(self._simulator, self._warnings, check, self._carry_out)
        self._judged = judged_at_end(self, self._ending)
        if options.log_folder is not None:
            trace = None
            if is_traced and self._counters is not None:
                trace = InstructionTrace(self.program, self._simulator, self._counters)
            self._log = SimLog(self.program, self._simulator, options.log_folder, trace)

    def _kept(self, interpreter: Interpreter) -> CarryOut:
        """What carries operations out; where a journal is wanted, it keeps them, too."""
        own = self._options.journal
        path = own or path_of_environment()
        if path is None:
            return interpreter.carry_out
        digest = digest_of(self.program)
        if own is None:
            keep_program(self.program, digest, path.parent)
        journal = Journal(digest, self._rules)
        return Recorder(interpreter, journal, path).carry_out

    def _cored(self, carry_out: CarryOut) -> CarryOut:
        """What carries operations out; where a core is wanted, it writes that at the end."""
        path = core_file.path_of_environment()
        if path is None:
            return carry_out
        form = Form.PLAIN if self._counters is None else Form.COUNTING
        code = core_file.CoreCode(self._rules.engine, self._rules.check, form)
        simulator = self._loaded()
        return core_file.CoreKeeper(carry_out, simulator, self.program, code, path).carry_out

    def run(self) -> None:
        """Start the PEs and take commands. Raises OpenwaferError before `load`."""
        self._loaded()
        self._is_running = True

    def stop(self) -> None:
        """Finish what is queued, let the fabric come to rest, and write the logs.

        Raises OpenwaferError when the program fails or cannot go on, when a function that was
        launched has not ended on every PE, and for mistakes where checks make them errors.
        """
        simulator = self._loaded()
        self._watch(self._drain)
        self._watch(lambda: self._carry_out(Stop()))
        self._is_running = False
        self._is_stopped = True
        self._write_log()
        write_if_asked(self.program, simulator)
        errors = as_errors(self.findings()) if self._rules.check is Check.ERROR else None
        if errors is not None:
            self._judged.detach()
            raise errors
        self.tell()

    def tell(self) -> None:
        """Write to the standard error what was found up to now, once, and at the run's end."""
        if self._judged.detach() is not None:
            self._ending.tell()

    def overruns(self) -> tuple[Diagnostic, ...]:
        """A warning for each copy, and each vector operation, over the end of a variable."""
        return tuple(one for one in self.findings() if one.code in _OVERRUN_CODES)

    def findings(self) -> tuple[Diagnostic, ...]:
        """A warning for each mistake that was found; in checked runs also notes of short copies."""
        self._loaded()
        return self._ending.findings()

    def warn_of_copy(self, found: Diagnostic | None) -> None:
        """Tell of a copy that hardly means what it does, once for each message."""
        self._warnings.note(found)

    def get_id(self, name: str) -> int:
        """Return the id of an exported name; the program need not be loaded."""
        return self.symbols.named(name).id

    def launch(self, function: str | int, *values: object, nonblock: bool = False) -> Task:
        """Start an exported function on every PE that exports it.

        Args:
            function: name or id.
            values: one number for each parameter, in the range of its type.
            nonblock: only queue it.
        """
        found = self.symbols.function(function)
        return self._launch(found, raw_arguments(found, values), nonblock)

    def call(self, function: str, words: Sequence[int], nonblock: bool = False) -> Task:
        """Start an exported function, its arguments given as unsigned 32-bit words."""
        found = self.symbols.function(function)
        for word in words:
            if not 0 <= int(word) <= _MAX_ARGUMENT:
                raise error("launch-argument-range", f"{function}: {word} is no 32-bit word")
        return self._launch(found, tuple(int(word) for word in words), nonblock)

    def copy_to_device(
        self,
        dest: int,
        src: NDArray[np.uint32],
        region: Region,
        data_type: DataType = DataType.BITS_32,
        nonblock: bool = False,
    ) -> Task:
        """Write a tensor to the memory of a region of PEs.

        Args:
            dest: id of the exported variable or pointer.
            src: 32-bit words, shape (h, w, l); 16-bit data stands in the low halves.
            region: which PEs, and how many elements of each.
            data_type: size of an element on the device.
            nonblock: only queue it; `src` must not change until it is done.
        """
        variable = self.symbols.variable(dest)
        region.check(self.program)
        tensors.check_tensor(src, region.shape)
        return self._submit(Task(CopyTo(variable.id, region, data_type, src)), nonblock)

    def copy_from_device(
        self,
        dest: Callable[[NDArray[np.uint32]], None],
        src: int,
        region: Region,
        data_type: DataType = DataType.BITS_32,
        nonblock: bool = False,
    ) -> Task:
        """Read a tensor from the memory of a region of PEs.

        Args:
            dest: takes the 32-bit words, shape (h, w, l), once they are there.
            src: id of the exported variable or pointer.
            region: which PEs, and how many elements of each.
            data_type: size of an element on the device.
            nonblock: only queue it.
        """
        variable = self.symbols.variable(src)
        region.check(self.program)
        return self._submit(Task(CopyFrom(variable.id, region, data_type), dest), nonblock)

    def send(
        self, color: int, src: NDArray[np.uint32], region: Region, nonblock: bool = False
    ) -> Task:
        """Stream a tensor to the cores of a region on a streaming color.

        Wavelets wait at the fabric's edge until a PE takes them, so sending never fails for want
        of a reader. What is sent next comes when the fabric is at rest again, as the host is slow.

        Args:
            color: of a ``MEMCPYH2D_*`` stream.
            src: 32-bit words, shape (h, w, l).
            region: which PEs, and how many wavelets for each.
            nonblock: only queue it; `src` must not change until it is done.
        """
        self._check_stream(color, "MEMCPYH2D")
        region.check(self.program)
        tensors.check_tensor(src, region.shape)
        return self._submit(Task(Send(color, region, src)), nonblock)

    def receive(
        self,
        dest: Callable[[NDArray[np.uint32]], None],
        color: int,
        region: Region,
        nonblock: bool = False,
    ) -> Task:
        """Take what the cores of a region stream to the host.

        Args:
            dest: takes the 32-bit words, shape (h, w, l), once they are there.
            color: of a ``MEMCPYD2H_*`` stream.
            region: which PEs, and how many wavelets of each.
            nonblock: only queue it.
        """
        self._check_stream(color, "MEMCPYD2H")
        region.check(self.program)
        return self._submit(Task(Receive(color, region), dest), nonblock)

    def receive_rest(
        self,
        dest: Callable[[NDArray[np.uint32]], None],
        color: int,
        pe: tuple[int, int],
        nonblock: bool = False,
    ) -> Task:
        """Take what a PE's core streams to the host until the fabric is at rest.

        Args:
            dest: takes the 32-bit words, shape (n,).
            color: of a ``MEMCPYD2H_*`` stream.
            pe: column and row.
            nonblock: only queue it.
        """
        self._check_stream(color, "MEMCPYD2H")
        return self._submit(Task(ReceiveRest(color, *pe), dest), nonblock)

    def send_port(self, port: str, src: Words, color: int | None = None) -> Task:
        """Let words wait to enter the fabric through a port, behind those that do; no time goes by.

        Args:
            port: its name.
            src: 32-bit words, shape (n,), or (2, n): behind the words 1 for a control wavelet.
            color: of those that enter by the port; None is the only one.
        """
        found = self._options.edge.named(port)
        is_shaped = src.ndim == 1 or (src.ndim == 2 and src.shape[0] == 2)
        if src.dtype != np.uint32 or not is_shaped:
            raise error(
                "port-words",
                f"{found} was given {src.dtype} of the shape {src.shape}",
                help="give np.uint32 of the shape (n,), or (2, n) with 1 for control wavelets",
            )
        return self._submit(Task(SendPort(port, found.color(color, is_into=True), src)), False)

    def receive_port(
        self, dest: Taker, port: str, num_words: int, color: int | None = None
    ) -> Task:
        """Wait until words have left the fabric through a port.

        Args:
            dest: takes the words, shape (2, n): behind them 1 for each control wavelet.
            port: its name.
            num_words: how many.
            color: of those that leave by the port; None is the only one.
        """
        found = self._options.edge.named(port)
        operation = ReceivePort(port, found.color(color, is_into=False), num_words)
        return self._submit(Task(operation, dest), False)

    def passed(self, port: str) -> tuple[Passed, Passed]:
        """Words that have entered the fabric through a port up to now, and that have left it."""
        found, simulator = self._options.edge.named(port), self._loaded()
        return simulator.passed(found, is_into=True), simulator.passed(found, is_into=False)

    @property
    def copy_cycles(self) -> int:
        """Cycles that copies up to now take at best, whether or not the clock has them."""
        self._loaded()
        return self._interpreter.copy_cycles

    def wait(self) -> None:
        """Finish what is queued, and let what was launched end and the fabric come to rest."""
        self._watch(self._drain)
        self._watch(self._settle)

    def num_elements(self, variable: int, region: Region, data_type: DataType) -> int:
        """How many elements a variable has behind its address on each PE of a region.

        Args:
            variable: id of the exported variable or pointer.
            region: which PEs; their number of elements does not count.
            data_type: size of an element.

        Raises:
            OpenwaferError: the PEs have different numbers of them, or one has none.
        """
        found = self.symbols.variable(variable)
        region.check(self.program)
        memory = region_memory(self.symbols, self._settle(), found, region, data_type.num_words)
        return copies.common_length(self.symbols, memory, found, data_type)

    def prints(self) -> tuple[Print, ...]:
        """What the PEs have printed up to now."""
        return self._loaded().prints()

    def account(self) -> Account:
        """Where the cycles of PEs went up to now; needs the option `has_account`."""
        return self._loaded().account()

    def line_cycles(self, region: Region) -> tuple[LineCycles, ...]:
        """Where the main threads of a region of PEs have spent their time up to now.

        Lines are in the order of file and line; those without cycles are left out.
        """
        self._loaded()
        region.check(self.program)
        if self._counters is None:
            raise not_counted()
        pes = [self.program.number_of(x, y) for _, _, x, y in region.pes()]
        return self._counters.lines(np.array(pes))

    def booked(self) -> BookedRun:
        """The run, for its profile; needs the options `has_account` and `has_line_cycles`."""
        simulator = self._loaded()
        if self._counters is None:
            raise not_counted()
        failure = self._interpreter.failure
        return BookedRun(self.program, simulator, self._counters, self._bins, failure)

    @property
    def has_failed(self) -> bool:
        """Whether an operation of the host has raised an error, or the user interrupted one."""
        self._loaded()
        return self._interpreter.failure is not None

    def task_wait(self, task: Task) -> None:
        """Finish everything queued up to a task."""
        if not task.is_done:
            self._watch(self._drain)

    def is_task_done(self, task: Task) -> bool:
        """Whether a task is finished; asking makes the simulation go on."""
        self.task_wait(task)
        return task.is_done

    def read_symbol(self, x: int, y: int, name: str) -> NDArray[np.uint8]:
        """Return the bytes of a symbol of PE (x, y) of the rectangle, as C would hold them."""
        simulator = self._loaded()
        symbol = self.symbols.symbol(name, x, y)
        words = simulator.read(x, y, symbol.address, symbol.num_words)
        return np.asarray(words.view(np.uint8)[: symbol.num_bytes])

    def memory_dump(self) -> MemoryDump:
        """Return the memory of all PEs with the program's symbols."""
        return dump_memory(self.program, self._loaded())

    @property
    def cycle(self) -> int:
        """Present cycle of the fabric."""
        return int(self._loaded().cycle)

    def look_at(self, cycle: int, look: Callable[[Simulator], None]) -> None:
        """Show the fabric to a function at the end of a cycle, whatever the host waits for then.

        Raises OpenwaferError for a cycle of the past.
        """
        simulator = self._loaded()
        simulator.look_at(cycle, lambda: look(simulator))

    def _launch(self, function: HostName, arguments: tuple[int, ...], nonblock: bool) -> Task:
        self.symbols.entries(function)
        return self._submit(Task(Launch(function.id, arguments)), nonblock)

    def _submit(self, task: Task, nonblock: bool) -> Task:
        self._started()
        self._pending.append(task)
        # Where the script ends first, they are carried out before the run is judged.
        self._ending.queued[:] = [self._drain]
        if not nonblock:
            self._watch(self._drain)
        return task

    def _drain(self) -> None:
        receives: list[Task] = []
        pending, self._pending = self._pending, []
        self._ending.queued.clear()
        for task in pending:
            if isinstance(task.operation, Receive | ReceiveRest | ReceivePort):
                receives.append(task)
                continue
            if isinstance(task.operation, CopyTo | CopyFrom):
                self._run_all(receives)
            self._run_all([task])
        self._run_all(receives)

    def _run_all(self, tasks: list[Task]) -> None:
        while tasks:
            task = tasks.pop(0)
            task.end(self._carry_out(task.operation))

    def _watch(self, action: Callable[[], object]) -> None:
        """Write the log also when the program fails: it says how it came there."""
        try:
            action()
        except (OpenwaferError, KeyboardInterrupt):
            self._write_log()
            self.tell()
            raise

    def _write_log(self) -> None:
        if self._log is not None:
            self._log.write(has_failed=self.has_failed, copy_cycles=self.copy_cycles)

    def _settle(self) -> Simulator:
        simulator = self._started()
        self._carry_out(Wait())
        return simulator

    def _check_stream(self, color: int, prefix: str) -> None:
        colors = {name: number for name, number in self.program.streams if name.startswith(prefix)}
        if color not in colors.values():
            known = ", ".join(f"{name} is {number}" for name, number in colors.items())
            raise error(
                "host-stream-unknown",
                f"color {color} is no {prefix} stream of the program",
                notes=(known or f"it has no {prefix} stream at all",),
                help=f"give <memcpy/get_params> a field .{prefix}_1 with the color",
            )

    def _loaded(self) -> Simulator:
        if self._simulator is None:
            raise error("runtime-not-loaded", "the program is not loaded", help="call load() first")
        return self._simulator

    def _started(self) -> Simulator:
        if self._is_stopped:
            raise error(
                "runtime-stopped", "the run is over", help="make a new runtime for another run"
            )
        if not self._is_running:
            raise error("runtime-not-running", "the program does not run", help="call run() first")
        return self._loaded()


def host_words(array: NDArray[Any], region: Region, order: Order, name: str) -> NDArray[np.uint32]:
    """Return the words of a host array as a tensor of the region's shape, (h, w, l)."""
    words = tensors.words_of(array, int(np.prod(region.shape)), name)
    return np.asarray(tensors.to_region(words, region.shape, order))
