"""The text form of the syntax tree: CSL itself, one layout, each nested operation in parentheses.

`parse` reads it back to an equal tree, so what a tree says can be seen, compared and kept.
"""

from collections.abc import Iterable
from functools import singledispatch
from textwrap import indent

from openwafer.sdk.csl import ast
from openwafer.sdk.csl.parser_blocks import ends_in_block
from openwafer.sdk.csl.recursion import DISPATCHED, deep_recursion

_ATOMS = (
    *(ast.IntLiteral, ast.FloatLiteral, ast.CharLiteral, ast.StringLiteral, ast.BoolLiteral),
    *(ast.EnumLiteral, ast.Identifier, ast.BuiltinCall, ast.Call, ast.Member, ast.Index),
    ast.Dereference,
)
_TYPES = (
    *(ast.ArrayType, ast.PointerType, ast.FunctionType, ast.AggregateType, ast.EnumType),
    ast.AnyType,
)


def render_module(module: ast.Module) -> str:
    """Text of a whole file, a newline at its end. Raises OpenwaferError for levels without end."""
    with deep_recursion(DISPATCHED):
        return "".join(f"{render(declaration)}\n" for declaration in module.declarations)


@singledispatch
def render(node: ast.Node) -> str:
    """Text of one node, without a newline at the end; a TypeError for what is no node."""
    raise TypeError(f"{type(node).__name__} is not a node of the syntax tree")


def _operand(node: ast.Expression) -> str:
    return render(node) if isinstance(node, _ATOMS) else f"({render(node)})"


def _type(node: ast.Expression) -> str:
    return render(node) if isinstance(node, _TYPES) else _operand(node)


def _list(nodes: Iterable[ast.Node]) -> str:
    return ", ".join(render(node) for node in nodes)


def _braced(nodes: Iterable[ast.Node]) -> str:
    inside = _list(nodes)
    return f"{{ {inside} }}" if inside else "{}"


def _quoted(value: bytes, quote: str) -> str:
    return f"{quote}{''.join(_escaped(chr(code), quote) for code in value)}{quote}"


def _escaped(char: str, quote: str) -> str:
    if char == "\n":
        return "\\n"
    if char in (quote, "\\"):
        return f"\\{char}"
    return char if " " <= char <= "~" else f"\\x{ord(char):02x}"


@render.register
def _(node: ast.Name) -> str:
    return node.text


@render.register
def _(node: ast.Identifier) -> str:
    return node.name


@render.register(ast.IntLiteral)
@render.register(ast.FloatLiteral)
def _(node: ast.IntLiteral | ast.FloatLiteral) -> str:
    return repr(node.value)


@render.register
def _(node: ast.CharLiteral) -> str:
    return _quoted(bytes([node.value]), "'")


@render.register
def _(node: ast.StringLiteral) -> str:
    return _quoted(node.value, '"')


@render.register
def _(node: ast.BoolLiteral) -> str:
    return "true" if node.value else "false"


@render.register
def _(node: ast.EnumLiteral) -> str:
    return f".{node.name.text}"


@render.register
def _(node: ast.FieldInit) -> str:
    return f".{node.name.text} = {render(node.value)}"


@render.register
def _(node: ast.StructInit) -> str:
    return f"{'.' if node.type is None else _type(node.type)}{_braced(node.fields)}"


@render.register
def _(node: ast.ArrayInit) -> str:
    return f"{'.' if node.type is None else _type(node.type)}{_braced(node.elements)}"


@render.register
def _(node: ast.BuiltinCall) -> str:
    return f"@{node.name.text}({_list(node.arguments)})"


@render.register
def _(node: ast.Call) -> str:
    return f"{_operand(node.callee)}({_list(node.arguments)})"


@render.register
def _(node: ast.Member) -> str:
    return f"{_operand(node.operand)}.{node.name.text}"


@render.register
def _(node: ast.Index) -> str:
    return f"{_operand(node.operand)}[{_list(node.indices)}]"


@render.register
def _(node: ast.Dereference) -> str:
    return f"{_operand(node.operand)}.*"


@render.register
def _(node: ast.AddressOf) -> str:
    return f"&{_operand(node.operand)}"


@render.register
def _(node: ast.Unary) -> str:
    return f"{node.operator}{_operand(node.operand)}"


@render.register
def _(node: ast.Binary) -> str:
    return f"{_operand(node.left)} {node.operator} {_operand(node.right)}"


@render.register
def _(node: ast.Comptime) -> str:
    return f"comptime {render(node.operand)}"


@render.register
def _(node: ast.TensorAccess) -> str:
    return f"|{_list(node.indices)}|{{{_list(node.shape)}}} -> {render(node.element)}"


@render.register
def _(node: ast.AsmOperand) -> str:
    return f"[{node.name.text}] {render(node.constraint)} ({render(node.value)})"


@render.register
def _(node: ast.Asm) -> str:
    volatile = " volatile" if node.is_volatile else ""
    parts = " : ".join(map(_list, (node.outputs, node.inputs, node.clobbers)))
    return f"asm{volatile} ({render(node.template)} : {parts})"


@render.register
def _(node: ast.ArrayType) -> str:
    return f"[{_list(node.dims)}]{_type(node.element)}"


@render.register
def _(node: ast.PointerType) -> str:
    const = "const " if node.is_const else ""
    return f"{'[*]' if node.is_many else '*'}{const}{_type(node.element)}"


@render.register
def _(node: ast.FunctionType) -> str:
    return f"{node.kind}({_list(node.parameters)}) {_type(node.result)}"


@render.register
def _(node: ast.Field) -> str:
    return f"{node.name.text}: {render(node.type)}"


@render.register
def _(node: ast.AggregateType) -> str:
    words = [node.layout.value] if node.layout else []
    words += ["union" if node.is_union else "struct", _braced(node.fields)]
    return " ".join(words)


@render.register
def _(node: ast.EnumElement) -> str:
    return node.name.text if node.value is None else f"{node.name.text} = {render(node.value)}"


@render.register
def _(node: ast.EnumType) -> str:
    tag = "" if node.tag is None else f"({render(node.tag)})"
    return f"enum{tag} {_braced(node.elements)}"


@render.register
def _(_: ast.AnyType) -> str:
    return "anytype"


def _label(name: ast.Name | None) -> str:
    return "" if name is None else f"{name.text}: "


def _statement(node: ast.Statement) -> str:
    has_end = ends_in_block(node) or isinstance(node, ast.Variable)
    return render(node) if has_end else f"{render(node)};"


@render.register
def _(node: ast.Block) -> str:
    lines = "\n".join(map(_statement, node.statements))
    inside = f"\n{indent(lines, '  ')}\n" if lines else ""
    return f"{_label(node.label)}{{{inside}}}"


def _absorbs_else(node: ast.Body) -> bool:
    """Whether an `else` written behind `node` would belong to an `if` inside of it."""
    match node:
        case ast.If(otherwise=None):
            return True
        case ast.If(otherwise=last) | ast.For(body=last) | ast.While(body=last):
            return last is not None and _absorbs_else(last)
        case ast.Comptime(operand=last) | ast.TensorAccess(element=last):
            return _absorbs_else(last)
        case ast.Return(value=value) | ast.Break(value=value):
            return value is not None and _absorbs_else(value)
        case ast.Assign(value=value):
            return _absorbs_else(value)
        case _:
            return False


@render.register
def _(node: ast.If) -> str:
    head = f"if ({render(node.condition)})"
    if node.otherwise is None:
        return f"{head} {render(node.then)}"
    then = f"({render(node.then)})" if _absorbs_else(node.then) else render(node.then)
    return f"{head} {then} else {render(node.otherwise)}"


@render.register
def _(node: ast.CaseRange) -> str:
    return f"{_operand(node.first)} ... {_operand(node.last)}"


@render.register
def _(node: ast.Prong) -> str:
    return f"{_list(node.values) or 'else'} => {render(node.body)},"


@render.register
def _(node: ast.Switch) -> str:
    prongs = "\n".join(map(render, node.prongs))
    return f"switch ({render(node.operand)}) {{\n{indent(prongs, '  ')}\n}}"


@render.register
def _(node: ast.For) -> str:
    inline = "inline " if node.is_inline else ""
    names = node.element.text if node.index is None else f"{node.element.text}, {node.index.text}"
    head = f"{_label(node.label)}{inline}for ({render(node.iterable)}) |{names}|"
    return f"{head} {render(node.body)}"


@render.register
def _(node: ast.While) -> str:
    inline = "inline " if node.is_inline else ""
    step = "" if node.step is None else f" : ({render(node.step)})"
    head = f"{_label(node.label)}{inline}while ({render(node.condition)}){step}"
    return f"{head} {render(node.body)}"


@render.register
def _(node: ast.Return) -> str:
    return "return" if node.value is None else f"return {render(node.value)}"


@render.register
def _(node: ast.Break) -> str:
    label = "" if node.label is None else f" :{node.label.text}"
    value = "" if node.value is None else f" {render(node.value)}"
    return f"break{label}{value}"


@render.register
def _(node: ast.Continue) -> str:
    return "continue" if node.label is None else f"continue :{node.label.text}"


@render.register
def _(node: ast.Assign) -> str:
    return f"{_operand(node.target)} {node.operator or ''}= {render(node.value)}"


@render.register
def _(node: ast.Attributes) -> str:
    values = (("align", node.align), ("linksection", node.linksection), ("linkname", node.linkname))
    return "".join(f" {word}({render(value)})" for word, value in values if value is not None)


def _words(*words: str) -> str:
    return " ".join(word for word in words if word)


@render.register
def _(node: ast.Variable) -> str:
    words = _words(node.storage, "comptime" if node.is_comptime else "", node.kind, node.name.text)
    type_text = "" if node.type is None else f": {_type(node.type)}"
    value = "" if node.initializer is None else f" = {render(node.initializer)}"
    return f"{words}{type_text}{render(node.attributes)}{value};"


@render.register
def _(node: ast.Parameter) -> str:
    name = "" if node.name is None else f"{node.name.text}:"
    return _words("comptime" if node.is_comptime else "", name, _type(node.type))


@render.register
def _(node: ast.Function) -> str:
    words = _words(node.storage, "inline" if node.is_inline else "", node.kind, node.name.text)
    result = "" if node.result is None else f" {_type(node.result)}"
    body = ";" if node.body is None else f" {render(node.body)}"
    return f"{words}({_list(node.parameters)}){render(node.attributes)}{result}{body}"


@render.register
def _(node: ast.ComptimeBlock) -> str:
    return f"comptime {render(node.body)}"


@render.register
def _(node: ast.LayoutBlock) -> str:
    return f"layout {render(node.body)}"
