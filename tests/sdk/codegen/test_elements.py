"""One element of every vector operation equals the reference, bit by bit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from openwafer.sdk.arch.generation import Arch
from openwafer.sdk.arch.vector_ops import VECTOR_OPS, VectorOp, element_words
from openwafer.sdk.codegen.native import NativeCode, compile_modules
from openwafer.sdk.codegen.objects import Host, this_host
from openwafer.sdk.ir.elements import element
from openwafer.sdk.ir.function import Type
from openwafer.sdk.ir.numbers import decode
from tests.examples import examples
from tests.sdk.codegen.oracle import native_element

_F16_EDGES = (0x0000, 0x8000, 0x0001, 0x03FF, 0x0400, 0x3C00, 0x7BFF, 0xFBFF, 0x7C00, 0x7E00)


def _native(host: Host) -> NativeCode:
    return compile_modules([], [], Arch.WSE2, host=host)


@pytest.fixture(scope="module")
def code() -> NativeCode:
    return _native(this_host())


@pytest.fixture(scope="module")
def plain_code() -> NativeCode:
    """Code for a processor without conversions of f16 and fused multiply-add."""
    return _native(Host("generic", ""))


def _bits(kind: str) -> st.SearchStrategy[int]:
    if element_words(kind) == 2:
        return st.integers(0, 0xFFFFFFFF)
    return st.sampled_from(_F16_EDGES) | st.integers(0, 0xFFFF)


def _number(bits: int, op: VectorOp) -> object:
    if op.destination.startswith("any"):
        return bits
    number = decode(bits, Type(op.destination))
    return "nan" if number != number else bits


@pytest.mark.parametrize("name", VECTOR_OPS)
@examples(40, by_default=8, deadline=None)
@given(data=st.data())
def test_an_element_is_the_references(name: str, code: NativeCode, data: st.DataObject) -> None:
    op = VECTOR_OPS[name]
    sources = [data.draw(_bits(kind)) for kind in op.sources]
    padded = (*sources, 0, 0, 0)[:3]
    got = native_element(code)(op.code, *padded)
    assert _number(got, op) == _number(element(op.code, *sources), op)


@pytest.mark.parametrize("name", [name for name in VECTOR_OPS if name.startswith(("f", "x"))])
@examples(25, by_default=5, deadline=None)
@given(data=st.data())
def test_the_plainest_processor_computes_the_same(
    name: str, plain_code: NativeCode, data: st.DataObject
) -> None:
    op = VECTOR_OPS[name]
    sources = [data.draw(_bits(kind)) for kind in op.sources]
    got = native_element(plain_code)(op.code, *(*sources, 0, 0, 0)[:3])
    assert _number(got, op) == _number(element(op.code, *sources), op)


def test_f16_multiply_add_rounds_once(code: NativeCode) -> None:
    # 1 + 2**-11 * (1 + 2**-10): a tie after rounding the product to f16, above it before.
    one, half_step, factor = 0x3C00, 0x1000, 0x3C01
    assert native_element(code)(VECTOR_OPS["fmach"].code, one, half_step, factor) == 0x3C01
