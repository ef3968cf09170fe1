"""Vector operations on memory: one native function for each operation and form of operands.

An operation runs element by element, in order, as :mod:`openwafer.sdk.ir.vectors` does; bounds are
checked once, before the first element: either all elements lie in memory, or none is touched. While
an operation of the PE is in flight it fills the mailbox with a request instead.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from openwafer.sdk.arch.generation import Generation
from openwafer.sdk.arch.pace import (
    NUM_BANKS,
    ONE_TURN,
    READ_PORTS,
    STRIDES,
    beat_words,
    drain_cycles,
    gap_table,
    load_cycles,
    waits_for_itself,
)
from openwafer.sdk.arch.vector_ops import VECTOR_OPS, VectorOp, element_words
from openwafer.sdk.codegen.body import Body
from openwafer.sdk.codegen.elements import element, width_of
from openwafer.sdk.codegen.floats import Floats
from openwafer.sdk.codegen.mailboxes import PARAMETERS, add, read, trap, word_address, write
from openwafer.sdk.codegen.requests import fill_request
from openwafer.sdk.ir.function import Instruction, Register, Type, Value
from openwafer.sdk.program import descriptor, mailbox
from openwafer.sdk.program.mailbox import Finding, Outcome, Trap, finding_of


@dataclass(frozen=True)
class Kernel:
    """An operation and what its operands are.

    Attributes:
        name: of the operation.
        form: a letter for each operand, destination first: ``d`` DSD, ``p`` pointer, ``s`` scalar.
        is_noted: the machine keeps book of words that nothing has written.
        tells_wraps: it is asked for where an element may leave its type.
    """

    name: str
    form: str
    is_noted: bool = False
    tells_wraps: bool = False

    @property
    def function(self) -> str:
        """Name of the native function; it returns an :class:`Outcome`."""
        marks = ".noted" * self.is_noted + ".wraps" * self.tells_wraps
        return f'@"vector.{self.name}.{self.form}{marks}"'

    @property
    def operand_types(self) -> list[str]:
        """LLVM types of the operands: scalars are raw bits."""
        op = VECTOR_OPS[self.name]
        kinds = (op.destination, *op.sources)
        return [
            _OPERAND_TYPES.get(letter, f"i{width_of(kind)}")
            for letter, kind in zip(self.form, kinds, strict=True)
        ]


_OPERAND_TYPES: Final = {"d": "<8 x i16>", "p": "i16"}
_REQUEST_TYPES: Final = {"d": Type.DSD, "p": Type.PTR}
# LLVM would look for a stride of one in the sparse loop too, at the cost of compile time.
_NO_VECTORS: Final = ", !llvm.loop !0"
METADATA: Final = """\
!0 = distinct !{!0, !1}
!1 = !{!"llvm.loop.vectorize.enable", i1 false}
"""
"""Nodes that kernels refer to; stands once in a module."""


@dataclass(frozen=True)
class Dsd:
    """A descriptor taken apart; values of type i64, words and elements."""

    base: str
    extent: str
    stride: str
    element_words: int


@dataclass(frozen=True)
class _Loop:
    """The counter's address, the label to go back to, and the number of the element."""

    counter: str
    label: str
    index: str


def take_apart(body: Body, operand: str, num_words: int) -> Dsd:
    """Parts of a descriptor, as an operation on elements of so many words has it."""
    base = _word(body, operand, descriptor.WORD_BASE, "zext")
    low = _word(body, operand, descriptor.WORD_EXTENT, "zext")
    high = _word(body, operand, descriptor.WORD_EXTENT + 1, "zext")
    extent = body.value(f"or i64 {low}, {body.value(f'shl i64 {high}, 16')}")
    return Dsd(base, extent, _step(body, operand, num_words), num_words)


def _step(body: Body, operand: str, num_words: int) -> str:
    """Words from one element to the next: strides count elements of the operation's width."""
    stride = _word(body, operand, descriptor.WORD_STRIDE, "sext")
    width = _word(body, operand, descriptor.WORD_ELEMENT, "zext")
    safe = body.select(body.value(f"icmp eq i64 {width}, 0"), "i64", str(num_words), width)
    scaled = body.value(f"mul i64 {stride}, {num_words}")
    return body.value(f"sdiv i64 {scaled}, {safe}")


def _word(body: Body, operand: str, index: int, extension: str) -> str:
    word = body.value(f"extractelement <8 x i16> {operand}, i64 {index}")
    return body.value(f"{extension} i16 {word} to i64")


def last_address(body: Body, dsd: Dsd, length: str) -> str:
    """Address of the last of so many elements; there is at least one."""
    steps = body.value(f"sub i64 {length}, 1")
    way = body.value(f"mul i64 {steps}, {dsd.stride}")
    return body.value(f"add i64 {dsd.base}, {way}")


def span_of(body: Body, dsd: Dsd, last: str) -> tuple[str, str]:
    """Lowest and highest word of elements that end with one at the address `last`."""
    low, high = (
        body.value(f"call i64 @llvm.{way}.i64(i64 {dsd.base}, i64 {last})")
        for way in ("umin", "umax")
    )
    return low, body.value(f"add i64 {high}, {dsd.element_words - 1}")


@contextmanager
def mapped(body: Body) -> Iterator[str]:
    """Code written meanwhile runs where the PE has a map of its variables; gives its address."""
    address, begin, end = read(body, mailbox.MAP), body.fresh_label(), body.fresh_label()
    body.branch(body.value(f"icmp eq i64 {address}, 0"), end, begin)
    body.begin(begin)
    yield body.value(f"inttoptr i64 {address} to ptr")
    body.jump(end)
    body.begin(end)


def show(body: Body, head: str, place: str, operand: int, ends: tuple[str, str]) -> None:
    """Show the simulator first and last element of an operand; `head` is the map's address."""
    look, state = body.value(f"load ptr, ptr {head}"), read(body, mailbox.MAP_STATE)
    where = f"i64 {place}, i64 {operand}, i64 {ends[0]}, i64 {ends[1]}"
    body.do(f"call void {look}(i64 {state}, ptr %mailbox, {where})")


def _gather(body: Body, flags: str, expression: str) -> None:
    """Add the bits of an expression to those of a variable of type i16."""
    new, old = body.value(expression), body.value(f"load i16, ptr {flags}")
    body.do(f"store i16 {body.value(f'or i16 {old}, {new}')}, ptr {flags}")


def kernel_declaration(kernel: Kernel) -> str:
    """LLVM text for those who call a kernel."""
    operands = ", ".join(kernel.operand_types)
    return f"declare i32 {kernel.function}(ptr noalias, ptr noalias, i64, {operands})\n"


def kernel_function(
    kernel: Kernel, floats: Floats, generation: Generation, memory_words: int
) -> str:
    """LLVM text of a kernel."""
    writer = _KernelWriter(kernel, floats, generation, memory_words)
    return writer.write()


class _KernelWriter:
    def __init__(
        self, kernel: Kernel, floats: Floats, generation: Generation, memory_words: int
    ) -> None:
        operands = ", ".join(f"{kind} %o{index}" for index, kind in enumerate(kernel.operand_types))
        self._body = Body(
            f"define i32 {kernel.function}({PARAMETERS}, i64 %place, {operands}) nounwind"
        )
        self._op: VectorOp = VECTOR_OPS[kernel.name]
        self._form = kernel.form
        self._options = ("tells_wraps",) * kernel.tells_wraps
        self._accumulates = kernel.form.startswith("ps") and len(self._op.sources) > 1
        self._floats = floats
        self._generation = generation
        self._memory_words = memory_words
        self._dsds: dict[int, Dsd] = {}
        self._is_unwritten = self._body.variable("i1") if kernel.is_noted else ""

    def write(self) -> str:
        body = self._body
        body.begin_entry()
        if self._is_unwritten:
            body.do(f"store i1 false, ptr {self._is_unwritten}")
        self._ask()
        kinds = (self._op.destination, *self._op.sources)
        for place, (letter, kind) in enumerate(zip(self._form, kinds, strict=True)):
            if letter == "d":
                self._dsds[place] = take_apart(body, f"%o{place}", element_words(kind))
        length = self._length()
        some = body.fresh_label()
        body.branch(body.value(f"icmp eq i64 {length}, 0"), "end", some)
        body.begin(some)
        lasts = {place: self._check_bounds(dsd, length) for place, dsd in self._dsds.items()}
        if self._form[0] == "p":
            self._check_address("%o0", element_words(self._op.destination))
        self._show(lasts)
        if self._options:
            self._ask_for_wraps(length, lasts)
        if self._is_unwritten:
            self._note(lasts)
        if self._form[0] == "p":
            self._reduction(length)
        else:
            self._loops(length, self._write_element, "end")
        body.begin("end")
        self._add_cycles(length)
        add(body, mailbox.ELEMENTS, length)
        self._count(length)
        if self._is_unwritten:
            self._ask_for_book()
        body.do(f"ret i32 {Outcome.FINISHED.value}")
        return body.text()

    def _count(self, length: str) -> None:
        """Count elements, and the words of memory that they take, in the PE's counters if any."""
        body, begin, end = self._body, self._body.fresh_label(), self._body.fresh_label()
        counters = read(body, mailbox.COUNTS)
        body.branch(body.value(f"icmp eq i64 {counters}, 0"), end, begin)
        body.begin(begin)
        head = body.value(f"inttoptr i64 {counters} to ptr")
        num_words = sum(dsd.element_words for dsd in self._dsds.values())
        words = body.value(f"mul i64 {length}, {num_words}")
        for number, amount in ((0, words), (self._op.code, length)):
            place = f"getelementptr i64, ptr {head}, i64 {number - mailbox.KIND_COUNTS}"
            address = body.value(place)
            counted = body.value(f"add i64 {body.value(f'load i64, ptr {address}')}, {amount}")
            body.do(f"store i64 {counted}, ptr {address}")
        body.jump(end)
        body.begin(end)

    def _ask(self) -> None:
        """Make a request where an operation is in flight; the code that calls has to wait."""
        body, asks, runs = self._body, self._body.fresh_label(), self._body.fresh_label()
        is_alone = body.value(f"icmp eq i64 {read(body, mailbox.IN_FLIGHT)}, 0")
        body.branch(is_alone, runs, asks)
        body.begin(asks)
        self._fill_request()
        body.do(f"ret i32 {Outcome.SUSPENDED.value}")
        body.begin(runs)

    def _fill_request(self) -> None:
        body = self._body
        kinds = (self._op.destination, *self._op.sources)
        types = [
            _REQUEST_TYPES.get(letter) or (Type.U16 if width_of(kind) == 16 else Type.U32)
            for letter, kind in zip(self._form, kinds, strict=True)
        ]
        args = tuple(Register(number, kind) for number, kind in enumerate(types))
        names: dict[Value, str] = {arg: f"%o{arg.number}" for arg in args}
        if self._form[0] == "p":
            names[args[0]] = body.value("shl i16 %o0, 1")
        request = Instruction("vector", args, names=(self._op.name, *self._options))
        fill_request(body, request, lambda arg: names[arg])
        write(body, mailbox.PLACE, "%place")

    def _note(self, lasts: Mapping[int, str]) -> None:
        """Note whether words between the ends of the operands have never been written."""
        body, found = self._body, "false"
        spans = [span_of(body, dsd, lasts[place]) for place, dsd in self._dsds.items()]
        if self._form[0] == "p":
            target = body.value("zext i16 %o0 to i64")
            more = element_words(self._op.destination) - 1
            spans.append((target, body.value(f"add i64 {target}, {more}")))
        for low, high in spans:
            some = body.value(f"call i1 @unwritten(ptr %mailbox, i64 {low}, i64 {high})")
            found = body.value(f"or i1 {found}, {some}")
        body.do(f"store i1 {found}, ptr {self._is_unwritten}")

    def _ask_for_book(self) -> None:
        """Let the machine keep book of the operation where that may change something."""
        body, asks, end = self._body, self._body.fresh_label(), self._body.fresh_label()
        body.branch(body.value(f"load i1, ptr {self._is_unwritten}"), asks, end)
        body.begin(asks)
        self._fill_request()
        with mapped(body) as head:
            finding = finding_of(Finding.OPERAND_UNWRITTEN)
            show(body, head, "%place", finding, ("0", "0"))
        body.jump(end)
        body.begin(end)

    def _length(self) -> str:
        """Extent of the first source that has one and is not empty, else the destination's."""
        if not self._dsds:
            return "1"
        in_order = sorted(self._dsds, key=lambda place: (place == 0, place))
        length, *others = (self._dsds[place].extent for place in in_order)
        for other in others:
            is_empty = self._body.value(f"icmp eq i64 {length}, 0")
            length = self._body.select(is_empty, "i64", other, length)
        return length

    def _check_bounds(self, dsd: Dsd, length: str) -> str:
        """Trap where an element lies outside of the memory; gives the last one's address."""
        last = last_address(self._body, dsd, length)
        for address in (dsd.base, last):
            self._check_i64(address, dsd.element_words)
        return last

    def _show(self, lasts: Mapping[int, str]) -> None:
        """Show the simulator the operands in memory that leave the variable they begin in."""
        with mapped(self._body) as head:
            for place, last in lasts.items():
                self._show_one(head, place, last)

    def _show_one(self, head: str, place: int, last: str) -> None:
        body, dsd = self._body, self._dsds[place]
        numbers = body.value(f"getelementptr i64, ptr {head}, i64 1")
        low, high = span_of(body, dsd, last)
        first, final = (self._variable(numbers, at) for at in (low, high))
        is_same = body.value(f"icmp eq i16 {first}, {final}")
        is_one = body.value(f"icmp ne i16 {first}, {mailbox.NO_VARIABLE}")
        good, bad = body.fresh_label(), body.fresh_label()
        body.branch(body.value(f"and i1 {is_same}, {is_one}"), good, bad)
        body.begin(bad)
        operand = mailbox.operand_of(self._op.code, place)
        show(body, head, "%place", operand, (dsd.base, last))
        body.jump(good)
        body.begin(good)

    def _variable(self, numbers: str, address: str) -> str:
        """Number of the variable that a word of memory belongs to."""
        place = self._body.value(f"getelementptr i16, ptr {numbers}, i64 {address}")
        return self._body.value(f"load i16, ptr {place}")

    def _check_address(self, address: str, num_words: int) -> None:
        self._check_i64(self._body.value(f"zext i16 {address} to i64"), num_words)

    def _check_i64(self, address: str, num_words: int) -> None:
        body = self._body
        good, bad = body.fresh_label(), body.fresh_label()
        end = self._memory_words - num_words
        body.branch(body.value(f"icmp ule i64 {address}, {end}"), good, bad)
        body.begin(bad)
        trap(body, Trap.OUT_OF_BOUNDS, body.value(f"and i64 {address}, 65535"), "%place")
        body.do(f"ret i32 {Outcome.TRAPPED.value}")
        body.begin(good)

    def _loops(self, length: str, act: Callable[[str, bool], None], end: str) -> None:
        """A loop over neighbours, which LLVM can vectorise, and one for all else."""
        body = self._body
        dense, sparse = body.fresh_label(), body.fresh_label()
        conditions = [
            body.value(f"icmp eq i64 {dsd.stride}, {dsd.element_words}")
            for dsd in self._dsds.values()
        ]
        is_dense, *others = conditions
        for other in others:
            is_dense = body.value(f"and i1 {is_dense}, {other}")
        body.branch(is_dense, dense, sparse)
        for label, hint in ((dense, ""), (sparse, _NO_VECTORS)):
            body.begin(label)
            loop = self._begin_loop()
            act(loop.index, label == dense)
            self._end_loop(loop, length, end, hint)

    def _write_element(self, index: str, is_dense: bool) -> None:
        body = self._body
        sources = [self._source(place, index, is_dense=is_dense) for place in self._sources()]
        result = element(body, self._floats, self._op, sources)
        address = self._element_address(self._dsds[0], index, is_dense=is_dense)
        body.do(f"store i{width_of(self._op.destination)} {result}, ptr {address}, align 2")

    def _ask_for_wraps(self, length: str, lasts: Mapping[int, str]) -> None:
        """Make a request where an element may leave the type of the operation's first variable."""
        body, looks, asks, runs = self._body, *(self._body.fresh_label() for _ in range(3))
        body.branch(self._reads_results(lasts), asks, looks)
        body.begin(looks)
        may_wrap = self._may_wrap(length) if 0 in self._dsds else "true"
        body.branch(may_wrap, asks, runs)
        body.begin(asks)
        self._fill_request()
        body.do(f"ret i32 {Outcome.SUSPENDED.value}")
        body.begin(runs)

    def _may_wrap(self, length: str) -> str:
        """Whether an element leaves the type of the destination's variable, all sources as now."""
        body, done = self._body, self._body.fresh_label()
        carried, overflowed = body.variable("i16"), body.variable("i16")
        for flags in (carried, overflowed):
            body.do(f"store i16 0, ptr {flags}")

        def look(index: str, is_dense: bool) -> None:
            a, b = (self._source(place, index, is_dense=is_dense) for place in self._sources())
            result = element(body, self._floats, self._op, [a, b])
            is_sum = self._op.name == "add16"
            # A sum that has not the sign of either operand; a difference, where theirs differ.
            pairs = ((a, result), (b, result if is_sum else a))
            signs = (body.value(f"xor i16 {one}, {other}") for one, other in pairs)
            carry = "icmp ult i16 " + (f"{result}, {a}" if is_sum else f"{a}, {b}")
            _gather(body, overflowed, f"and i16 {', '.join(signs)}")
            _gather(body, carried, f"sext i1 {body.value(carry)} to i16")

        self._loops(length, look, done)
        body.begin(done)
        answer = body.variable("i1")
        body.do(f"store i1 false, ptr {answer}")
        with mapped(body) as head:
            numbers = body.value(f"getelementptr i64, ptr {head}, i64 1")
            kind = self._variable(numbers, self._dsds[0].base)
            signed = body.value(f"and i16 {kind}, {mailbox.SIGNED}")
            is_signed = body.value(f"icmp ne i16 {signed}, 0")
            has_sign = body.value(f"and i16 {kind}, {mailbox.SIGNED | mailbox.UNSIGNED}")
            over, carry = (body.value(f"load i16, ptr {flags}") for flags in (overflowed, carried))
            lost = body.select(is_signed, "i16", over, carry)
            is_lost = body.value(f"icmp slt i16 {lost}, 0")
            is_known = body.value(f"icmp ne i16 {has_sign}, 0")
            body.do(f"store i1 {body.value(f'and i1 {is_lost}, {is_known}')}, ptr {answer}")
        return body.value(f"load i1, ptr {answer}")

    def _reads_results(self, lasts: Mapping[int, str]) -> str:
        """Whether an element may read what one before it wrote, so that none can be foreseen."""
        if 0 not in self._dsds:
            return "true"
        body, found = self._body, "false"
        spans = {place: span_of(body, dsd, lasts[place]) for place, dsd in self._dsds.items()}
        target, (low, high) = self._dsds[0], spans.pop(0)
        for place, (least, most) in spans.items():
            source = self._dsds[place]
            is_other = body.value(f"icmp ne i64 {source.base}, {target.base}")
            steps = body.value(f"icmp ne i64 {source.stride}, {target.stride}")
            stays = body.value(f"icmp eq i64 {source.stride}, 0")
            differs = body.value(f"or i1 {body.value(f'or i1 {is_other}, {steps}')}, {stays}")
            begins = body.value(f"icmp ule i64 {least}, {high}")
            ends_in = body.value(f"icmp uge i64 {most}, {low}")
            meets = body.value(f"and i1 {begins}, {ends_in}")
            found = body.value(f"or i1 {found}, {body.value(f'and i1 {differs}, {meets}')}")
        return found

    def _reduction(self, length: str) -> None:
        """The running result takes the place of a scalar first source behind the first element."""
        body = self._body
        width = width_of(self._op.destination)
        total = body.variable(f"i{width}")
        body.do(f"store i{width} {'%o1' if self._accumulates else '0'}, ptr {total}")
        loop = self._begin_loop()
        sources = [self._source(place, loop.index, is_dense=False) for place in self._sources()]
        if self._accumulates:
            sources[0] = body.value(f"load i{width}, ptr {total}")
        result = element(body, self._floats, self._op, sources)
        body.do(f"store i{width} {result}, ptr {total}")
        done = body.fresh_label()
        self._end_loop(loop, length, done)
        body.begin(done)
        body.do(f"store i{width} {result}, ptr {word_address(body, '%o0', 'i16')}, align 2")
        body.jump("end")

    def _begin_loop(self) -> _Loop:
        body = self._body
        counter, label = body.variable("i64"), body.fresh_label()
        body.do(f"store i64 0, ptr {counter}")
        body.jump(label)
        body.begin(label)
        return _Loop(counter, label, body.value(f"load i64, ptr {counter}"))

    def _end_loop(self, loop: _Loop, length: str, end: str, hint: str = "") -> None:
        body = self._body
        following = body.value(f"add nuw nsw i64 {loop.index}, 1")
        body.do(f"store i64 {following}, ptr {loop.counter}")
        is_end = body.value(f"icmp eq i64 {following}, {length}")
        body.do(f"br i1 {is_end}, label %{end}, label %{loop.label}{hint}")

    def _sources(self) -> range:
        return range(1, len(self._form))

    def _source(self, place: int, index: str, *, is_dense: bool) -> str:
        if place not in self._dsds:
            return f"%o{place}"
        address = self._element_address(self._dsds[place], index, is_dense=is_dense)
        width = width_of(self._op.sources[place - 1])
        return self._body.value(f"load i{width}, ptr {address}, align 2")

    def _element_address(self, dsd: Dsd, index: str, *, is_dense: bool) -> str:
        body = self._body
        step = str(dsd.element_words) if is_dense else dsd.stride
        way = body.value(f"mul nsw i64 {index}, {step}")
        start = body.value(f"getelementptr i16, ptr %memory, i64 {dsd.base}")
        return body.value(f"getelementptr i16, ptr {start}, i64 {way}")

    def _add_cycles(self, length: str) -> None:
        """Add what :func:`~openwafer.sdk.arch.pace.vector_time` says."""
        body = self._body
        sources = [dsd for place, dsd in self._dsds.items() if place > 0]
        cycles = paced = self._paced_cycles(length)
        if len(sources) > 1:
            turned = body.value(f"mul i64 {cycles}, {self._turns(*sources[:2])}")
            raised = body.value(f"add i64 {turned}, {ONE_TURN - 1}")
            cycles = body.value(f"udiv i64 {raised}, {ONE_TURN}")
            add(body, mailbox.TURNS, body.value(f"sub i64 {cycles}, {paced}"))
        beats = self._beats(length, paced)
        add(body, mailbox.BEATS, beats)
        if beats != paced:
            add(body, mailbox.PAUSES, body.value(f"sub i64 {paced}, {beats}"))
        timing = self._generation.timing
        start = load_cycles(len(self._dsds), timing.load_latency)
        drain = drain_cycles(timing.drain_cycles, timing.load_latency, bool(sources))
        total = body.value(f"add i64 {cycles}, {start}")
        now = body.value(f"add i64 {read(body, mailbox.CYCLE)}, {total}")
        write(body, mailbox.CYCLE, now)
        write(body, mailbox.DRAINED, body.value(f"add i64 {now}, {drain}"))

    def _turns(self, first: Dsd, second: Dsd) -> str:
        """As :func:`~openwafer.sdk.arch.pace.read_turns` has it."""
        body, row = self._body, self._generation.timing.row_words
        distance = body.value(f"sub i64 {first.base}, {second.base}")
        rest = body.value(f"and i64 {distance}, {READ_PORTS * row - 1}")
        meets = body.value(f"icmp eq i64 {rest}, 0")
        turns = self._turns_row_by_row(first, second, ONE_TURN, READ_PORTS)
        if 0 in self._dsds:
            is_updated = body.value(f"icmp eq i64 {self._dsds[0].base}, {first.base}")
            if beat_words(self._op, self._generation) >= row:
                meets = body.value(f"or i1 {meets}, {is_updated}")
            rest = body.value(f"and i64 {first.stride}, {NUM_BANKS // 2 * row - 1}")
            is_in_step = body.value(f"icmp eq i64 {rest}, 0")
            is_written = body.value(f"and i1 {is_updated}, {is_in_step}")
            others = self._turns_row_by_row(first, second, 2 * ONE_TURN, NUM_BANKS)
            turns = body.select(is_written, "i64", others, turns)
        for_neighbours = body.select(meets, "i64", str(2 * ONE_TURN), str(ONE_TURN))
        are_neighbours = body.value(f"and i1 {self._is_near(first)}, {self._is_near(second)}")
        return body.select(are_neighbours, "i64", for_neighbours, turns)

    def _is_near(self, dsd: Dsd) -> str:
        """Whether a descriptor's elements follow one another a word or two apart."""
        body = self._body
        way = body.value(f"call i64 @llvm.abs.i64(i64 {dsd.stride}, i1 false)")
        return body.value(f"icmp ult i64 {body.value(f'sub i64 {way}, 1')}, 2")

    def _turns_row_by_row(self, first: Dsd, second: Dsd, apart: int, num_banks: int) -> str:
        """Turns where no rows meet, and one for each that does, modulo the banks."""
        body, shift = self._body, self._generation.timing.row_words.bit_length() - 1
        turns = str(apart)
        for index in range(ONE_TURN):
            rows = []
            for dsd in (first, second):
                way = body.value(f"mul i64 {dsd.stride}, {index}")
                address = body.value(f"add i64 {dsd.base}, {way}")
                rows.append(body.value(f"ashr i64 {address}, {shift}"))
            between = body.value(f"sub i64 {rows[0]}, {rows[1]}")
            rest = body.value(f"and i64 {between}, {num_banks - 1}")
            meets = body.value(f"zext i1 {body.value(f'icmp eq i64 {rest}, 0')} to i64")
            turns = body.value(f"add i64 {turns}, {meets}")
        return turns

    def _paced_cycles(self, length: str) -> str:
        """As :func:`~openwafer.sdk.arch.pace.paced_cycles` has it."""
        body, width = self._body, self._op.rates[self._generation.arch]
        if waits_for_itself(self._op, accumulates=self._accumulates):
            return body.value(f"mul i64 {length}, {self._generation.timing.float_latency}")
        if width == 1:
            return length
        gap = "1"
        for dsd in self._dsds.values():
            step = body.value(f"sdiv i64 {dsd.stride}, {dsd.element_words}")
            gap = body.value(f"call i64 @llvm.umax.i64(i64 {gap}, i64 {self._gap(step, width)})")
        raised = body.value(f"add i64 {body.value(f'mul i64 {length}, {gap}')}, {width - 1}")
        return body.value(f"udiv i64 {raised}, {width}")

    def _beats(self, length: str, paced: str) -> str:
        """Beats of an operation whose elements pass in so many cycles."""
        body, width = self._body, self._op.rates[self._generation.arch]
        if waits_for_itself(self._op, accumulates=self._accumulates):
            return length
        if width == 1 or self._generation.timing.stride_widths:
            return paced
        return body.value(f"udiv i64 {body.value(f'add i64 {length}, {width - 1}')}, {width}")

    def _gap(self, step: str, width: int) -> str:
        """Cycles in which `width` elements pass, four bits a stride of a constant."""
        body, gaps = self._body, gap_table(width, self._generation)
        beyond = body.value(f"or i64 {body.value(f'and i64 {step}, 7')}, 8")
        at = body.value(f"sub i64 {step}, {STRIDES.start}")
        is_there = body.value(f"icmp ult i64 {at}, {len(gaps)}")
        other = body.value(f"sub i64 {beyond}, {STRIDES.start}")
        place = body.value(f"shl i64 {body.select(is_there, 'i64', at, other)}, 2")
        packed = sum(gap << 4 * index for index, gap in enumerate(gaps))
        wide = body.value(f"zext i64 {place} to i128")
        found = body.value(f"trunc i128 {body.value(f'lshr i128 {packed}, {wide}')} to i64")
        return body.value(f"and i64 {found}, 15")
