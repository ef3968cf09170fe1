"""A function is the same at compile time, interpreted, and in native code, to the last bit."""

from random import Random

import numpy as np
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from openwafer.sdk.codegen.objects import Effort
from openwafer.sdk.csl import types
from openwafer.sdk.csl.sema.lowering import bits_of
from openwafer.sdk.ir.numbers import decode
from tests.examples import examples
from tests.sdk.codegen.oracle import Native, run_interpreter, run_native
from tests.sdk.csl.sema.programs import analyze, known
from tests.sdk.csl.sema.typed_programs import TypedFunction, literal

RANDOMS = st.randoms(use_true_random=False)


def same_everywhere(random: Random, effort: Effort) -> None:
    function = TypedFunction(random)
    arguments = [literal(random, kind) for kind in function.kinds]
    note(f"{function.text}f({', '.join(arguments)})")
    kind = types.NAMED_TYPES[function.result]
    folded = known(f"{function.text}const it = f({', '.join(arguments)});").value
    size = 16 * types.num_words(kind)
    expected = without_nan(kind, bits_of(kind, folded) & ((1 << size) - 1))
    found = [without_nan(kind, bits) for bits in run(function, arguments, effort)]
    assert found == [expected] * 2


def without_nan(kind: types.Type, bits: int) -> int | str:
    """The bits of a number; one value for all NaNs, whose sign and payload nothing defines."""
    number = decode(bits, types.ir_type(kind))
    return bits if number == number else "nan"


def run(function: TypedFunction, arguments: list[str], effort: Effort) -> list[int]:
    """Bits of the result in native code and interpreted."""
    given = zip(function.kinds, arguments, strict=True)
    variables = "".join(f"var g{k}: {kind} = {value};\n" for k, (kind, value) in enumerate(given))
    main = f"var out: {function.result};\nfn main() void {{ out = f(g0, g1, g2); }}\n"
    text = f"{function.text}{variables}{main}comptime {{ @export_symbol(main); }}"
    image = analyze(text)
    memory = np.zeros(image.module.stack_base, np.uint16)
    for variable in image.module.globals:
        memory[variable.address :][: len(variable.initial)] = variable.initial
    native = run_native(Native(image.module, effort=effort), memory=memory)
    oracle = run_interpreter(image.module, memory=memory)
    assert native.outcomes == oracle.outcomes
    out = image.state.variables["out"]
    words = [t.memory[out.address :][: types.num_words(out.type)] for t in (native, oracle)]
    return [sum(int(word) << 16 * k for k, word in enumerate(one)) for one in words]


@examples(25, by_default=6, deadline=None)
@given(random=RANDOMS)
def test_a_function_gives_the_same_bits_everywhere(random: Random) -> None:
    same_everywhere(random, Effort.NONE)


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(random=RANDOMS)
def test_many_functions_give_the_same_bits_everywhere(random: Random) -> None:
    same_everywhere(random, Effort.LIGHT)
