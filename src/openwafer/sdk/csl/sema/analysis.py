"""State of an analysis: where it is, what it has found, and the function that it emits."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from openwafer.diagnostics import Diagnostic, OpenwaferError, Severity
from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.csl.lanes import Group
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.csl.sema.builder import FunctionBuilder
from openwafer.sdk.csl.sema.cell_path import CellPath
from openwafer.sdk.csl.sema.debug_tables import DebugTables
from openwafer.sdk.csl.sema.image_state import ImageState
from openwafer.sdk.csl.sema.layout_state import LayoutState
from openwafer.sdk.csl.sema.progress import Progress
from openwafer.sdk.csl.sema.recording import Question, Recording, answered
from openwafer.sdk.csl.types import Type, ir_type, is_aggregate, num_words
from openwafer.sdk.csl.values import (
    FunctionValue,
    MemoryLvalue,
    Module,
    Operand,
    SlotLvalue,
    Variable,
)
from openwafer.sdk.ir import function as ir
from openwafer.sdk.program.debug_info import NO_NUMBER
from openwafer.source import Span


class Poisoned(OpenwaferError):  # noqa: N818 - follows an error that was reported
    """Raised where a name is used whose declaration was wrong, which has been reported."""


class Separately(Exception):  # noqa: N818 - control flow, no error
    """Raised inside a loop that is followed in lanes, where its iterations have an order."""


@dataclass(eq=False)
class Scope:
    """Names of one block; None stands for a declaration that failed.

    Attributes:
        end: offset in the source where the block ends.
    """

    parent: "Scope | None" = None
    end: int = 0
    names: dict[str, Operand | None] = field(default_factory=dict)

    def find(self, name: str) -> "Scope | None":
        """The innermost scope that declares `name`."""
        scope: Scope | None = self
        while scope is not None and name not in scope.names:
            scope = scope.parent
        return scope


@dataclass(eq=False)
class Result:
    """A value that control carries to the end of a construct from an open block."""

    operand: Operand
    block: ir.Block | None
    span: Span


@dataclass(eq=False)
class Target:
    """What `break` and `continue` act on.

    Attributes:
        results: of a labelled block, of an inlined function: what breaks carry out.
        next_iteration: block that `continue` jumps to; None where it is no loop.
        exit: block behind a loop; None until something jumps there.
    """

    label: str
    is_loop: bool
    expected: Type | None = None
    results: list[Result] = field(default_factory=list)
    exit: ir.Block | None = None
    next_iteration: ir.Block | None = None


@dataclass(eq=False)
class Context:
    """Where the analysis is.

    Attributes:
        builder: of the function emitted; None where nothing can be.
        is_comptime: every value must be known, and control flow is followed as it goes.
        return_type: of the function analysed; None outside of functions.
        inlined: target of `return` in an inlined function.
        result_address: where a function writes an array or struct that it returns.
        declaring: name of the global whose initializer this is.
        runtime_depth: branches and loops of the PE around this place.
        with_address: names of the function whose address is taken.
        expanded: the inline function whose body this is, and the place that calls it.
    """

    module: Module
    scope: Scope
    builder: FunctionBuilder | None = None
    is_comptime: bool = True
    is_top_level: bool = False
    return_type: Type | None = None
    inlined: Target | None = None
    result_address: ir.Value | None = None
    function: str = ""
    declaring: str = ""
    runtime_depth: int = 0
    targets: list[Target] = field(default_factory=list)
    with_address: frozenset[str] = frozenset()
    expanded: tuple[str, int] = ("", NO_NUMBER)


@dataclass(eq=False, slots=True)
class _NewConstant(Question):
    """The question for an address in memory: two that are alike have two."""

    name: str
    kind: Type
    words: tuple[int, ...]

    def answer(self, analysis: "Analysis") -> Variable:
        """A new variable."""
        variable = analysis.image.new_variable(self.name, self.kind, list(self.words))
        variable.is_mutable = False
        return variable

    def key(self, _analysis: "Analysis", answer: Variable) -> Hashable:
        """Its name."""
        return answer.name


@dataclass(frozen=True, slots=True)
class _VariableOf(Question):
    """The question for the variable of a name."""

    symbol: str

    def answer(self, analysis: "Analysis") -> Variable:
        """The variable."""
        return analysis.image.variables[self.symbol]

    def key(self, _analysis: "Analysis", answer: Variable) -> Hashable:
        """Its type; an address is a question of its own."""
        return answer.type


class _Within:
    """Entered more often than anything else: a generator would take thrice the time."""

    __slots__ = ("_analysis", "_context", "_outer")

    def __init__(self, analysis: "Analysis", context: Context) -> None:
        self._analysis = analysis
        self._context = context

    def __enter__(self) -> Context:
        analysis = self._analysis
        self._outer = analysis.context, analysis.last_place
        analysis.context = self._context
        return self._context

    def __exit__(self, *error: object) -> None:
        self._analysis.context, self._analysis.last_place = self._outer


class Analysis:
    """See the module. One object analyses one image, or one layout.

    Attributes:
        group: what the integers that differ are the lanes of.
        num_lane_loops: loops around this place that are followed in lanes.
        recording: what the body asks that is analysed; None where it has another way to look.
        trees: paths of the loops that were followed, by loop.
        path: that the iteration leaves which is noted; None where none is.
        last_place: of the statement or call that is evaluated.
    """

    def __init__(
        self,
        options: CompileOptions,
        image: ImageState,
        root: Module,
        layout: LayoutState | None = None,
        group: Group | None = None,
    ) -> None:
        self.options = options
        self.group = group or Group()
        self.num_lane_loops = 0
        self.recording: Recording | None = None
        self.path: CellPath | None = None
        self.trees: dict[Hashable, list[Any]] = {}
        self._image = image
        self.layout = layout
        self.diagnostics: list[Diagnostic] = []
        self.printed: list[str] = []
        self.call_depth = self.deepest_call = 0
        self.num_steps = 0
        self._progress = Progress(options.comptime_step_limit)
        self.last_place: Span | None = None
        self.name_function: Callable[[FunctionValue, Span], str]
        self.context = Context(root, Scope())

    def ask(self, question: Question) -> Any:
        """What the image answers; recorded while a body is."""
        path, self.path = self.path, None
        recording, self.recording = self.recording, None
        answer = answered(self, question, recording)
        self.recording = recording
        if path is not None:
            self.path = path
            path.asks(question)
        return answer

    @property
    def image(self) -> ImageState:
        """What the analysis has collected, for answers, and where no body is recorded."""
        assert self.recording is None
        self.lose_path()
        return self._image

    def unrecorded(self) -> ImageState:
        """The same for a body that looks without a question: it leaves no record."""
        self.recording = None
        self.lose_path()
        return self._image

    @property
    def tables(self) -> DebugTables:
        """Of the source; a number in them is the same in all images."""
        return self._image.tables

    @property
    def arch(self) -> Arch:
        """Generation compiled for."""
        return self.options.arch

    @property
    def module(self) -> Module:
        """The module whose code is analysed."""
        return self.context.module

    @property
    def is_comptime(self) -> bool:
        """Whether every value must be known here."""
        return self.context.is_comptime

    @property
    def is_top_level(self) -> bool:
        """Whether this is directly in a file's `comptime` block."""
        return self.context.is_top_level

    @property
    def is_live(self) -> bool:
        """Whether control arrives here."""
        builder = self.context.builder
        return self.is_comptime or builder is None or builder.block is not None

    def within(self, context: Context) -> AbstractContextManager[Context]:
        """Analyse in another context for a while."""
        return _Within(self, context)

    @contextmanager
    def scoped(self, span: Span) -> Iterator[Scope]:
        """Open a block of names, which ends with `span`."""
        context = self.context
        context.scope = Scope(context.scope, span.end)
        try:
            yield context.scope
        finally:
            assert context.scope.parent is not None
            context.scope = context.scope.parent

    def at_comptime(self) -> AbstractContextManager[Context]:
        """Demand known values for a while, in the same scope."""
        return self.within(replace(self.context, is_comptime=True, targets=[]))

    @contextmanager
    def under_runtime_control(self) -> Iterator[None]:
        """Analyse what the PE may run never, or many times."""
        context = self.context
        context.runtime_depth += 1
        try:
            yield
        finally:
            context.runtime_depth -= 1

    def spend_step(self, span: Span) -> None:
        """Count a call or an iteration that is followed at compile time."""
        limit = self.options.comptime_step_limit
        self._progress.look(self.num_steps, span)
        if not self.spend_steps(1):
            self.fail(
                "too-many-steps",
                f"exceeded the maximum of {limit} calls and iterations at compile time",
                span,
                help="look for a loop without an end, or raise it with --comptime-step-limit",
            )

    def spend_steps(self, count: int) -> bool:
        """Count several; False, and nothing counted, where they are too many."""
        is_enough = self.num_steps + count <= self.options.comptime_step_limit
        self.num_steps += count * is_enough
        return is_enough

    def in_all_lanes(self) -> AbstractContextManager[None]:
        """Evaluate what loops around this place have no part in."""
        return self._in_all_lanes() if self.num_lane_loops else nullcontext()

    @contextmanager
    def _in_all_lanes(self) -> Iterator[None]:
        outer, self.num_lane_loops = self.num_lane_loops, 0
        try:
            with self.group.suspended():
                yield
        finally:
            self.num_lane_loops = outer

    def in_order(self) -> None:
        """What comes next has its turn: loops around it are followed iteration by iteration."""
        self.recording = None
        self.lose_path()
        if self.num_lane_loops:
            raise Separately

    def lose_path(self) -> None:
        """What comes next cannot be noted: the iteration is evaluated each time."""
        if self.path is not None:
            self.path.lose()

    def steps_ahead(self) -> int:
        """How many steps there may be before anybody looks at them."""
        bound = min(self.options.comptime_step_limit, self._progress.next_steps)
        return bound - self.num_steps

    # Findings

    def fail(
        self, code: str, message: str, span: Span, notes: tuple[str, ...] = (), help: str = ""
    ) -> NoReturn:
        """Give up the statement with an error."""
        raise OpenwaferError(Diagnostic(Severity.ERROR, f"csl-{code}", message, span, notes, help))

    def warn(self, code: str, message: str, span: Span | None, help: str = "") -> None:
        """Note what is hardly meant, once for each place."""
        found = Diagnostic(Severity.WARNING, f"csl-{code}", message, span, (), help)
        if found not in self.diagnostics:
            self.in_order()
            self.diagnostics.append(found)

    def forbid(self, code: str, message: str, span: Span, help: str) -> None:
        """Note what the documentation forbids: an error with `--strict`, else a warning."""
        if self.options.is_strict:
            self.fail(code, message, span, help=help)
        self.warn(code, message, span, help)

    def report(self, error: OpenwaferError) -> None:
        """Keep the errors of a statement that was given up; each is kept once."""
        self.recording = None
        if not isinstance(error, Poisoned):
            new = (d for d in error.diagnostics if d not in self.diagnostics)
            self.diagnostics.extend(new)

    @property
    def has_errors(self) -> bool:
        """Whether anything found forbids a program."""
        return any(found.severity is Severity.ERROR for found in self.diagnostics)

    # Emission

    @property
    def builder(self) -> FunctionBuilder:
        """Builder of the run-time function analysed."""
        builder = self.context.builder
        if builder is None or self.is_comptime:
            assert self.last_place is not None
            self.fail("run-time-only", "this happens on a PE, not at compile time", self.last_place)
        return builder

    def emit(
        self,
        op: str,
        *args: ir.Value,
        type: ir.Type = ir.Type.VOID,  # noqa: A002 - as instructions call it
        names: tuple[str, ...] = (),
    ) -> ir.Register:
        """Append one instruction."""
        return self.builder.emit(op, args, type, names)

    def set_place(self, span: Span) -> None:
        """Source place of the instructions to come."""
        self.last_place = span
        context = self.context
        if context.is_comptime or context.builder is None:
            return
        context.builder.place = self.place_of(span)

    def place_of(self, span: Span) -> int:
        """Number of a place of the function analysed."""
        context, extent = self.context, (span.source, span.start, span.end)
        return self.tables.place(extent, context.function, *context.expanded)

    def new_slot(self, kind: Type, hint: str = "value") -> SlotLvalue:
        """A register slot of the function."""
        return SlotLvalue(kind, self.builder.new_slot(hint, ir_type(kind)), is_const=False)

    def new_memory(self, kind: Type, hint: str = "memory") -> MemoryLvalue:
        """Words of the function's stack."""
        slot = self.builder.new_slot(hint, ir.Type.VOID, max(1, num_words(kind)))
        address = self.emit("slot_address", type=ir.Type.PTR, names=(slot,))
        return MemoryLvalue(kind, address, is_const=False)

    def new_local(self, kind: Type, hint: str, *, in_memory: bool = False) -> Operand:
        """A local variable, in memory where it must be."""
        if in_memory or is_aggregate(kind):
            return self.new_memory(kind, hint)
        return self.new_slot(kind, hint)

    def new_block(self, hint: str) -> ir.Block:
        """A block to jump to and to enter later."""
        return self.builder.new_block(hint)

    def enter(self, block: ir.Block) -> None:
        """Go on in `block`."""
        self.builder.enter(block)

    def jump(self, block: ir.Block) -> None:
        """End the current block with a jump."""
        self.builder.jump(block)

    def branch(self, condition: ir.Value, then: ir.Block, otherwise: ir.Block) -> None:
        """End the current block with a choice."""
        self.builder.branch(condition, then, otherwise)

    def new_constant(self, name: str, kind: Type, words: list[int]) -> Variable:
        """A global of the image that nothing assigns to."""
        variable: Variable = self.ask(_NewConstant(name, kind, tuple(words)))
        return variable

    def variable(self, symbol: str) -> Variable:
        """The global of a name."""
        variable: Variable = self.ask(_VariableOf(symbol))
        return variable
