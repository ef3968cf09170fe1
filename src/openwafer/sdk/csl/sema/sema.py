"""The engine: evaluates any node of the syntax tree, at compile time or by emitting code.

Each kind of construct registers how its nodes are evaluated; builtins register by name.
"""

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from openwafer.diagnostics import OpenwaferError, suggestion
from openwafer.sdk.csl import ast, types
from openwafer.sdk.csl.imports import LIBRARY, ImportPaths
from openwafer.sdk.csl.lanes import Group
from openwafer.sdk.csl.options import CompileOptions
from openwafer.sdk.csl.parser_remedies import remedy_for_type
from openwafer.sdk.csl.sema import coercion, lowering, lvalues, shared_values
from openwafer.sdk.csl.sema.analysis import Analysis, Context, Poisoned, Scope
from openwafer.sdk.csl.sema.image_state import ImageState
from openwafer.sdk.csl.sema.layout_state import LayoutState
from openwafer.sdk.csl.sema.named_values import note_local
from openwafer.sdk.csl.sema.recording import Memo, NoKeyError, Question
from openwafer.sdk.csl.types import Pointer, Struct, Type
from openwafer.sdk.csl.values import (
    NOTHING,
    UNDEFINED,
    Comptime,
    FunctionValue,
    Loaded,
    Module,
    Operand,
    PointerValue,
)
from openwafer.sdk.ir import function as ir
from openwafer.sdk.program.routing import Direction
from openwafer.source import Span

T = TypeVar("T")
Node = TypeVar("Node", bound=ast.Node)
Evaluator: TypeAlias = Callable[["Sema", Node, Type | None], Operand]
Handler: TypeAlias = Callable[["Sema", ast.BuiltinCall, Type | None], Operand]

_EVALUATORS: Final[dict[type[ast.Node], Callable[..., Operand]]] = {}
BUILTINS: Final[dict[str, Handler]] = {}
"""How each builtin is evaluated, by its name without the `@`."""


_LANGUAGE: Final = {
    "undefined": Comptime(types.UNDEFINED, UNDEFINED),
    **{name: Comptime(types.TYPE, kind) for name, kind in types.NAMED_TYPES.items()},
    **{d.name: Comptime(types.DIRECTION, int(d)) for d in Direction},
}
"""Names that need no declaration."""


def evaluates(kind: type[Node]) -> Callable[[Evaluator[Node]], Evaluator[Node]]:
    """Register the decorated function as the meaning of a kind of node."""

    def register(evaluator: Evaluator[Node]) -> Evaluator[Node]:
        _EVALUATORS[kind] = evaluator
        return evaluator

    return register


def builtin(*names: str) -> Callable[[Handler], Handler]:
    """Register the decorated function as the meaning of builtins."""

    def register(handler: Handler) -> Handler:
        BUILTINS.update(dict.fromkeys(names, handler))
        return handler

    return register


@dataclass(frozen=True, slots=True)
class _GlobalOf(Question):
    """The question for what a name stands for."""

    prefix: str
    name: str
    span: Span = field(compare=False)

    def answer(self, sema: "Sema") -> Operand:
        """What it stands for."""
        return sema.global_of(sema.image.modules[self.prefix], self.name, self.span)

    def key(self, sema: "Sema", answer: Operand) -> Hashable:
        """A number for it."""
        keys = sema.image.modules[self.prefix].keys
        if self.name not in keys:
            keys[self.name] = sema.memo.number(sema.key_of(answer))
        return keys[self.name]


class Sema(Analysis):
    """Analyses one image, or the layout."""

    def __init__(
        self,
        options: CompileOptions,
        image: ImageState,
        root: Module,
        imports: ImportPaths,
        layout: LayoutState | None = None,
        group: Group | None = None,
    ) -> None:
        super().__init__(options, image, root, layout, group)
        self.imports = imports
        self.memo = Memo()
        self.call: Callable[[FunctionValue, list[Operand], Span], Operand]
        self.find_global: Callable[[Module, str, Span], Operand]

    @property
    def is_simd(self) -> bool:
        """Whether two 16-bit elements share a wavelet where a descriptor does not say."""
        surroundings = self._image.surroundings
        return surroundings is not None and surroundings.is_simd

    # Evaluation

    def evaluate(self, node: ast.Node, expected: Type | None = None) -> Operand:
        """What a node stands for: an lvalue where it names one."""
        evaluator = _EVALUATORS.get(type(node))
        if evaluator is None:
            self.fail("unsupported", f"'{node.span.text}' is not supported", node.span)
        return evaluator(self, node, expected)

    def lvalue(self, node: ast.Node) -> Operand:
        """The lvalue that an expression names; other values as they are."""
        return self.evaluate(node)

    def expression(self, node: ast.Node, expected: Type | None = None) -> Loaded:
        """Value of an expression; `expected` guides literals and is not enforced."""
        operand = self.evaluate(node, expected)
        return operand if isinstance(operand, Comptime) else self.load(operand, node.span)

    def typed(self, node: ast.Node, kind: Type) -> Loaded:
        """Value of an expression, as a value of type `kind`."""
        return self.coerce(self.expression(node, kind), kind, node.span)

    def comptime_value(self, node: ast.Node, kind: Type | None = None) -> Comptime:
        """Value of an expression that must be known."""
        if not self.context.is_comptime:
            with self.at_comptime():
                return self.comptime_value(node, kind)
        operand = self.expression(node, kind)
        if kind is not None:
            operand = self.coerce(operand, kind, node.span)
        return self.defined(operand, node.span)

    def known(self, operand: Operand, span: Span) -> Comptime:
        """`operand`, which must be known."""
        loaded = self.load(operand, span)
        if not isinstance(loaded, Comptime):
            self.fail(
                "not-comptime",
                f"'{span.text}' is not comptime-known",
                span,
                help="use a const with a comptime-known initializer",
            )
        return loaded

    def defined(self, operand: Operand, span: Span) -> Comptime:
        """`operand`, which must be known and not undefined."""
        value = self.known(operand, span)
        if value.value is UNDEFINED:
            self.fail("undefined", "use of an undefined value", span)
        return value

    def integer(self, node: ast.Node, what: str = "value") -> int:
        """A known integer, id, direction or enumeration element, as its number."""
        value = self.comptime_value(node)
        if isinstance(value.value, bool) or not isinstance(value.value, int):
            self.fail("not-integer", f"{what} is an integer, got: '{value.type}'", node.span)
        return int(value.value)

    def string(self, node: ast.Node) -> str:
        """A known string."""
        value = self.comptime_value(node, types.COMPTIME_STRING).value
        assert isinstance(value, bytes)
        return value.decode("utf-8", "surrogateescape")

    def type_of_node(self, node: ast.Node) -> Type:
        """A type expression."""
        value = self.comptime_value(node)
        if not isinstance(value.value, Type):
            self.fail("not-a-type", f"expected a type, got a '{value.type}'", node.span)
        return value.value

    def fields(self, operand: Operand, span: Span) -> dict[str, Loaded]:
        """Values of a struct's fields by name."""
        kind = operand.type
        if not isinstance(kind, Struct):
            if kind == NOTHING.type:
                return {}
            self.fail("not-a-struct", f"expected a struct, got: '{kind}'", span)
        parts = ((f.name, lvalues.part(self, operand, i)) for i, f in enumerate(kind.fields))
        return {name: self.load(value, span) for name, value in parts}

    # Values and lvalues

    def load(self, operand: Operand, span: Span) -> Loaded:
        """The value of an lvalue."""
        return operand if type(operand) is Comptime else lvalues.load(self, operand, span)

    def store(self, lvalue: Operand, operand: Operand, span: Span) -> None:
        """Assign to an lvalue a value that becomes its type."""
        value = self.coerce(operand, lvalue.type, span)
        lvalues.store(self, lvalue, value, span)

    def coerce(self, operand: Operand, kind: Type, span: Span) -> Loaded:
        """`operand` as a value of type `kind`."""
        return coercion.coerce(self, operand, kind, span)

    def lower(self, operand: Operand, span: Span) -> ir.Value:
        """A scalar, pointer or descriptor as an operand of an instruction."""
        return lowering.lower(self, self.load(operand, span), span)

    def address_of(self, operand: Operand, span: Span) -> Operand:
        """A pointer to an lvalue."""
        return lvalues.address_of(self, operand, span)

    def address(self, pointer: Comptime, span: Span) -> ir.Value:
        """A known pointer as an operand."""
        kind, value = self._pointer(pointer, span)
        return lowering.address(self, kind, value, span)

    def pointer_bits(self, pointer: Comptime, span: Span) -> int:
        """A known pointer as a number: its byte address, or the number of a function."""
        kind, value = self._pointer(pointer, span)
        return lowering.pointer_bits(self, kind, value, span)

    def word_address(self, pointer: Comptime, span: Span) -> int:
        """A known pointer as a number."""
        kind, value = self._pointer(pointer, span)
        return lowering.word_address(self, kind, value, span)

    def _pointer(self, pointer: Comptime, span: Span) -> tuple[Pointer, PointerValue]:
        if not isinstance(pointer.type, Pointer) or not isinstance(pointer.value, PointerValue):
            self.fail("not-a-pointer", f"expected a pointer, got: '{pointer.type}'", span)
        return pointer.type, pointer.value

    # Names

    def declare(self, name: ast.Name, operand: Operand | None) -> None:
        """Bring a local name into scope."""
        names = self.context.scope.names
        if name.text in names:
            self.fail(
                "redeclared",
                f"redeclaration of '{name.text}'",
                name.span,
                help="give one of them another name",
            )
        names[name.text] = operand
        if operand is not None:
            note_local(self, name, operand)

    def find(self, name: str, span: Span) -> Operand:
        """What a name stands for here."""
        scope = self.context.scope.find(name)
        if scope is not None:
            operand = scope.names[name]
            if operand is None:
                raise Poisoned(*self.diagnostics[-1:])
            return operand
        if name in self.module.declarations:
            return self.global_of(self.module, name, span)
        if name in _LANGUAGE:
            return _LANGUAGE[name]
        integer = types.integer_named(name)
        if integer is not None:
            return Comptime(types.TYPE, integer)
        known = [*self.module.declarations, *self._local_names(), *_LANGUAGE]
        return self.fail(
            "undeclared",
            f"use of undeclared identifier '{name}'",
            span,
            help=self._help_for(name, known),
        )

    def _help_for(self, name: str, known: list[str]) -> str:
        """What a name that nothing declares may have meant."""
        if name in BUILTINS:
            return f"a builtin begins with '@': @{name}"
        if self.imports.declares(LIBRARY / "math.csl", name):
            return f'import its module: const math = @import_module("<math>"); then math.{name}'
        return remedy_for_type(name) or suggestion(name, known)

    def global_of(self, module: Module, name: str, span: Span) -> Operand:
        """What a name stands for at the top of a module."""
        found = module.globals.get(name)
        is_of_image = self._image.modules.get(module.prefix) is module
        if found is None:
            self.lose_path()
        elif self.path is not None and is_of_image and self.recording is None:
            self.path.asks(_GlobalOf(module.prefix, name, span))
        elif self.path is not None:
            self.path.is_lonely |= not is_of_image
        if self.recording is None or not is_of_image:
            self.recording = None
            return self.find_global(module, name, span) if found is None else found
        operand: Operand = self.ask(_GlobalOf(module.prefix, name, span))
        return operand

    def key_of(self, value: object) -> Hashable:
        """What is equal for values that are the same in two images.

        Raises:
            NoKeyError: nothing is.
        """
        return shared_values.key_of(self._image, value)

    def moved(self, value: Any) -> Any:
        """A value that another image has, too, as this one has it."""
        return shared_values.moved(self._image, value)

    def recalled(self, module: Module, key: Hashable, analyse: Callable[[], T]) -> T:
        """A known value, from another image where one has the same.

        Args:
            module: where it is evaluated.
            key: says all that it depends on but what is asked for.
            analyse: evaluates it.
        """
        if self.layout is not None or self._image.modules.get(module.prefix) is not module:
            return analyse()

        def evaluate() -> T:
            value = analyse()
            try:
                self.key_of(value)
            except NoKeyError:
                if self.recording is not None:
                    self.recording.is_lost = True
            return value

        known: T = self.moved(self.memo.recall(self, (key, module.prefix), evaluate))
        return known

    def _local_names(self) -> Iterator[str]:
        scope: Scope | None = self.context.scope
        while scope is not None:
            yield from scope.names
            scope = scope.parent

    def in_module(self, module: Module) -> AbstractContextManager[Context]:
        """Analyse at the top of a module, at compile time."""
        return self.within(Context(module, Scope()))

    @contextmanager
    def recovering(self) -> Iterator[None]:
        """Keep an error, and go on behind it."""
        try:
            yield
        except OpenwaferError as error:
            self.report(error)
