"""Texts of graphs as the vendor's front end writes them, by hand, for models of two layers."""

from collections.abc import Sequence

HIDDEN, ROWS = 4, 3
WEIGHT, VALUE = f"tensor<{HIDDEN}x{HIDDEN}xf32>", f"tensor<{ROWS}x{HIDDEN}xf32>"
UNIT = f"tensor<{HIDDEN}xf32>"
EDGES = "transpose_a = false, transpose_b = false"


def sentence(result: str, kind: str, operands: str, attributes: str, types: str) -> str:
    in_braces = f" {{{attributes}}}" if attributes else ""
    return f"    {result} = cirh.{kind} {operands}{in_braces} : {types} loc(#loc1)"


def function(arguments: Sequence[str], lines: Sequence[str], outputs: Sequence[str]) -> str:
    """A module of one function; an output is its value, type and attributes."""
    parts = [one.split(" ", 2) for one in outputs]
    types = ", ".join(f"{type_} {attributes}".strip() for _, type_, attributes in parts)
    values = ", ".join(value for value, _, _ in parts)
    return "\n".join([
        "#loc0 = loc(unknown)",
        "module  {",
        f"  func @graph({', '.join(arguments)}) -> ({types}) attributes {{cs.pol = 1 : i64}} {{",
        *lines,
        f"    return {values} : {', '.join(type_ for _, type_, _ in parts)} loc(#loc0)",
        "  } loc(#loc0)",
        "} loc(#loc0)",
        '#loc1 = loc("add"(callsite("f"("a.py":1:0) at "g"("(b.py":2:0))))',
    ])  # fmt: skip


def weight(place: int, output: int, name: str, type_: str = WEIGHT) -> str:
    attributes = f'tf.aliasing_output = {output} : i64, tf.resource_name = "state.{name}"'
    return f"%arg{place}: {type_} {{{attributes}}} loc(unknown)"


def products_with_momentum(*, clips: bool) -> str:
    """Two layers y = x w, loss sum(y y), momentum; with `clips` gradients wait for their norm."""
    product = f"({VALUE}, {WEIGHT}) -> {VALUE}"
    to_weight = f"({VALUE}, {VALUE}) -> {WEIGHT}"
    lines = [
        sentence("%cst", "Const", "dense<2.000000e+00>", "", VALUE),
        sentence("%cst_0", "Const", "dense<9.000000e-01>", "", WEIGHT),
        sentence("%cst_1", "Const", "dense<1.000000e-02>", "", WEIGHT),
        sentence("%0", "Mul", "%cst_0, %cst_0", "", WEIGHT),
        sentence("%1", "MatMul", "%arg4, %arg0", EDGES, product),
        sentence("%2", "MatMul", "%1, %arg1", EDGES, product),
        sentence("%3", "Mul", "%2, %2", "", VALUE),
        sentence("%e", "Mul", "%2, %cst", "", VALUE),
        sentence("%4", "Reduce", "%3", "dimensions = dense<[0, 1]> : tensor<2xi64>, "
                 'reduce_kind = "ADD"', f"({VALUE}) -> tensor<f32>"),
        sentence("%5", "MatMul", "%1, %e", "transpose_a = true, transpose_b = false", to_weight),
        sentence("%6", "MatMul", "%e, %arg1", "transpose_a = false, transpose_b = true", product),
        sentence("%7", "MatMul", "%arg4, %6", "transpose_a = true, transpose_b = false", to_weight),
        *_updates(clips=clips),
    ]  # fmt: skip
    arguments = [
        weight(0, 0, "model.blocks.0.weight"),
        weight(1, 1, "model.blocks.1.weight"),
        weight(2, 2, "optimizer.state.0.momentum"),
        weight(3, 3, "optimizer.state.1.momentum"),
        f'%arg4: {VALUE} {{cs.input_name = "input_0"}} loc(unknown)',
    ]
    outputs = [f"%{place} {WEIGHT} " for place in ("w0", "w1", "m0", "m1")]
    return function(arguments, lines, [*outputs, '%4 tensor<f32> {cs.output_name = "loss"}'])


def _updates(*, clips: bool) -> list[str]:
    lines = []
    gradients = {0: "%7", 1: "%5"}
    if clips:
        norm = "dims = dense<[0, 1]> : tensor<2xi64>, keepdim = false"
        spread = "broadcast_dimensions = dense<> : tensor<0xi64>"
        lines = [
            *(sentence(f"%n{at}", "L2Norm", gradients[at], norm, f"({WEIGHT}) -> tensor<f32>")
              for at in (0, 1)),
            sentence("%n", "Add", "%n0, %n1", "", "tensor<f32>"),
            sentence("%s", "BroadcastInDim", "%n", spread, f"(tensor<f32>) -> {WEIGHT}"),
        ]  # fmt: skip
        lines += [sentence(f"%g{at}", "Div", f"{gradients[at]}, %s", "", WEIGHT) for at in (0, 1)]
        gradients = {at: f"%g{at}" for at in (0, 1)}
    for at, gradient in gradients.items():
        lines += [
            sentence(f"%b{at}", "Mul", f"%arg{2 + at}, %cst_0", "", WEIGHT),
            sentence(f"%m{at}", "Add", f"%b{at}, {gradient}", "", WEIGHT),
            sentence(f"%d{at}", "Mul", f"%m{at}, %cst_1", "", WEIGHT),
            sentence(f"%w{at}", "Sub", f"%arg{at}, %d{at}", "", WEIGHT),
        ]
    return lines


def decaying_products(depth: int) -> str:
    """A chain y = x w of so many layers whose weights are halved; a step count doubles.

    A rate becomes twice the new count. Its outputs are the loss, a sum of y, and the old count.
    """
    product = f"({VALUE}, {WEIGHT}) -> {VALUE}"
    half = sentence("%half", "Const", "dense<5.000000e-01>", "", WEIGHT)
    lines, value = [half], f"%arg{depth}"
    for at in range(depth):
        lines += [sentence(f"%w{at}", "Mul", f"%arg{at}, %half", "", WEIGHT),
                  sentence(f"%y{at}", "MatMul", f"{value}, %arg{at}", EDGES, product)]  # fmt: skip
        value = f"%y{at}"
    lines += [
        sentence("%loss", "Reduce", value, 'dimensions = dense<[0, 1]> : tensor<2xi64>, '
                 'reduce_kind = "ADD"', f"({VALUE}) -> tensor<f32>"),
        sentence("%twice", "Add", f"%arg{depth + 1}, %arg{depth + 1}", "", "tensor<f32>"),
        sentence("%rate", "Add", "%twice, %twice", "", "tensor<f32>"),
    ]  # fmt: skip
    arguments = [weight(at, at, f"model.blocks.{at}.weight") for at in range(depth)]
    arguments += [f'%arg{depth}: {VALUE} {{cs.input_name = "input_0"}} loc(unknown)',
                  weight(depth + 1, depth, "schedule.step", "tensor<f32>"),
                  weight(depth + 2, depth + 1, "schedule.rate", "tensor<f32>")]  # fmt: skip
    outputs = [f"%w{at} {WEIGHT} " for at in range(depth)]
    outputs += ["%twice tensor<f32> ", "%rate tensor<f32> "]
    outputs += ['%loss tensor<f32> {cs.output_name = "loss"}',
                f'%arg{depth + 1} tensor<f32> {{cs.output_name = "step"}}']  # fmt: skip
    return function(arguments, lines, outputs)
