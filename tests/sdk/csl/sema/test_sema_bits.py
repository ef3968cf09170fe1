"""Integers of any width and packed structs, against Python's integers."""

from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.sdk.csl.sema.programs import known, run

OPERATORS = ("+", "-", "*", "&", "|", "^", "<<", ">>", "/", "%")


def wrapped(value: int, width: int, *, is_signed: bool) -> int:
    value &= (1 << width) - 1
    return value - (1 << width) if is_signed and value >> (width - 1) else value


def computed(a: int, operator: str, b: int) -> int:
    """Division rounds toward zero; by zero it gives all bits, and the dividend as remainder."""
    match operator:
        case "/":
            return -1 if b == 0 else (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)
        case "%":
            return a if b == 0 else a - b * computed(a, "/", b)
        case "<<":
            return a << b
        case ">>":
            return a >> b
        case _:
            return int(eval(f"{a} {operator} {b}"))  # the other operators are Python's own


@examples(120, deadline=None)
@given(st.data())
def test_integers_of_any_width_wrap_around(data: st.DataObject) -> None:
    width, is_signed = data.draw(st.integers(1, 64)), data.draw(st.booleans())
    kind = f"{'i' if is_signed else 'u'}{width}"
    low, high = (-(1 << width >> 1), (1 << width >> 1) - 1) if is_signed else (0, (1 << width) - 1)
    operator = data.draw(st.sampled_from(OPERATORS))
    is_shift = operator in ("<<", ">>")
    a = data.draw(st.integers(low, high))
    b = data.draw(st.integers(0, width - 1) if is_shift else st.integers(low, high))
    right = str(b) if is_shift else "b"
    program = f"var a: {kind} = {a};\nvar b: {kind} = {b if not is_shift else 0};\nvar out: {kind};"
    got = run(f"{program}\nfn main() void {{ out = a {operator} {right}; }}")["out"]
    assert got == wrapped(computed(a, operator, b), width, is_signed=is_signed)


@examples(60, deadline=None)
@given(st.data())
def test_conversions_between_widths_keep_the_low_bits(data: st.DataObject) -> None:
    widths = [data.draw(st.integers(1, 64)) for _ in range(2)]
    signs = [data.draw(st.booleans()) for _ in range(2)]
    source, target = (f"{'iu'[not s]}{w}" for w, s in zip(widths, signs, strict=True))
    value = wrapped(data.draw(st.integers(0, 2**64)), widths[0], is_signed=signs[0])
    want = wrapped(value, widths[1], is_signed=signs[1])
    program = f"var a: {source} = {value};\nvar out: {target};"
    assert run(f"{program}\nfn main() void {{ out = @as({target}, a); }}")["out"] == want
    assert known(f"const it = @as({target}, @as({source}, {value}));").value == want


@examples(60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 16), st.booleans()), min_size=1, max_size=6), st.data())
def test_fields_of_a_packed_struct_lie_bit_by_bit(
    fields: list[tuple[int, bool]], data: st.DataObject
) -> None:
    while sum(width for width, _ in fields) > 64:
        fields.pop()
    values = [data.draw(st.integers(0, (1 << width) - 1)) for width, _ in fields]
    kinds = [f"{'iu'[not is_signed]}{width}" for width, is_signed in fields]
    numbers = [wrapped(v, w, is_signed=s) for v, (w, s) in zip(values, fields, strict=True)]
    memory = run(packed_program(kinds, numbers))
    start = memory.image.state.variables["it"].address
    total = sum(width for width, _ in fields)
    num_words = -(-total // 16) if total <= 32 else 4
    words = memory.words[start : start + num_words]
    bits = sum(int(word) << (16 * i) for i, word in enumerate(words))
    for width, value in zip((w for w, _ in fields), values, strict=True):
        assert bits & ((1 << width) - 1) == value
        bits >>= width
    assert [memory[f"out{i}"] for i in range(len(fields))] == numbers


def packed_program(kinds: list[str], numbers: list[int]) -> str:
    fields = ", ".join(f"f{i}: {kind}" for i, kind in enumerate(kinds))
    stores = " ".join(f"it.f{i} = {number};" for i, number in enumerate(numbers))
    loads = " ".join(f"out{i} = it.f{i};" for i in range(len(kinds)))
    outs = "\n".join(f"var out{i}: {kind};" for i, kind in enumerate(kinds))
    return f"""
    const record = packed struct {{ {fields} }};
    var it: record;
    {outs}
    fn main() void {{ {stores} {loads} }}"""


def test_a_packed_union_shows_the_same_bits_in_each_field() -> None:
    program = """
    const halves = packed struct { low: u8, high: u8 };
    const word = packed union { whole: u16, parts: halves };
    var it = word{ .whole = 0x1234 };
    const known = word{ .whole = 0xabcd };
    var out: [3]u16;
    fn main() void {
      out[0] = it.parts.low;
      it.parts.high = 0xff;
      out[1] = it.whole;
      out[2] = known.parts.high;
    }"""
    assert run(program)["out"] == [0x34, 0xFF34, 0xAB]


NESTED = """
const mode = enum(u2) { off, slow, fast };
const inner = packed struct { lo: u3, neg: i5 };
const flags = packed struct { on: bool, m: mode, x: inner, f: f16, p: i5 };
const first = inner{ .lo = 5, .neg = -3 };
var s = flags{ .on = true, .m = mode.fast, .x = first, .f = 1.5, .p = -1 };
var out: [6]i16;
fn copied() flags { return s; }
fn main() void {
  var it = copied();
  out[0] = @as(i16, it.m);
  out[1] = @as(i16, it.f * 2.0);
  it.x = inner{ .lo = 7, .neg = -16 };
  it.on = !it.on;
  out[2] = it.x.neg;
  out[3] = if (it.on) 1 else 0;
  out[4] = it.p;
  out[5] = it.x.lo;
}"""


def test_structs_floats_and_flags_lie_in_packed_structs() -> None:
    assert run(NESTED)["out"] == [2, 3, -16, 0, -1, 7]
