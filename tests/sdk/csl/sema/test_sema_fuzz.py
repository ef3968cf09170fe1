"""Whatever is written, the analysis ends with a program or with diagnostics."""

import re
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from openwafer.diagnostics import OpenwaferError
from openwafer.sdk.csl.operators import BinaryOperator
from tests.csl.error_file import FOLDER, read
from tests.examples import examples
from tests.sdk.csl.sema.programs import analyze
from tests.sdk.csl.sema.test_sema_run import CASES

# A changed step may make a loop endless, and one mistake is about endless recursion.
_LEFT_OUT = re.compile(r"\bwhile\b|f\(n \+ 1\)")
_TOKEN = re.compile(
    r"\"[^\"]*\"|\d+\.\d+|@?\w+|\.\.\.|\.\*|=>|<<=|>>=|<<|>>|[-+*/%&|^=!<>]=|[^\s\w]"
)
_OPERATORS = frozenset(map(str, BinaryOperator)) - {"and", "or"}
_KEYWORDS = frozenset(
    (
        "fn",
        "var",
        "const",
        "if",
        "else",
        "for",
        "switch",
        "break",
        "continue",
        "return",
        "comptime",
        "inline",
        "struct",
        "enum",
        "export",
    )
)


def _sources() -> list[str]:
    end = "\ncomptime { @export_symbol(main); }"
    files = [file for file in map(read, sorted(FOLDER.glob("*.csl"))) if file.stage == "sema"]
    runs = [f"var out: i16;\nfn main() void {{ {body} }}{end}" for body, _ in CASES.values()]
    return [text for text in [*runs, *(f.program for f in files)] if not _LEFT_OUT.search(text)]


def _family(token: str) -> str:
    """Tokens of one family may stand for each other without a syntax error."""
    if token in _OPERATORS:
        return "operator"
    if token in _KEYWORDS:
        return token
    return "@" if token[0] == "@" else "operand" if re.match(r"[\w\"]", token) else token


SOURCES = _sources()
TOKENS = defaultdict(list)
for _source in SOURCES:
    for _word in _TOKEN.findall(_source):
        TOKENS[_family(_word)].append(_word)


def found_in(text: str) -> list[str]:
    """Codes of what is wrong with a program."""
    try:
        analyze(text)
    except OpenwaferError as error:
        return [found.code for found in error.diagnostics]
    return []


@examples(150, deadline=None)
@given(st.data())
def test_changed_programs_end_in_diagnostics(data: st.DataObject) -> None:
    words = _TOKEN.findall(data.draw(st.sampled_from(SOURCES)))
    for _ in range(data.draw(st.integers(1, 2))):
        at = data.draw(st.integers(0, len(words) - 1))
        words[at] = data.draw(st.sampled_from(TOKENS[_family(words[at])]))
    assert "ir-invalid" not in found_in(" ".join(words))
