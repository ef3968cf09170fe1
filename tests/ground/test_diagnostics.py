"""Rendered diagnostics, read as a user reads them."""

import pickle
import re
from textwrap import dedent

import pytest

from openwafer.diagnostics import (
    Diagnostic,
    OpenwaferError,
    Severity,
    did_you_mean,
    error,
    render,
    tell,
)
from openwafer.source import SourceText, Span


def span_of(text: str, marked: str) -> Span:
    start = text.index(marked)
    return Span(SourceText("run.yaml", text), start, start + len(marked))


def rendered(expected: str) -> str:
    return dedent(expected).strip()


def test_carets_stand_under_the_span() -> None:
    failure = error("unknown-key", "no key 'lr' here", span=span_of("a: 1\nlr: 2\n", "lr"))
    expected = """
        error[unknown-key]: no key 'lr' here
         --> run.yaml:2:1
          |
        2 | lr: 2
          | ^^
    """
    assert str(failure) == rendered(expected)


def test_notes_and_help_follow_the_message() -> None:
    failure = error("disk-full", "no room", notes=("needs 4 GiB", "has 1 GiB"), help="free 3 GiB")
    expected = """
        error[disk-full]: no room
          = note: needs 4 GiB
          = note: has 1 GiB
          = help: free 3 GiB
    """
    assert str(failure) == rendered(expected)


def test_a_note_of_several_lines_stays_indented() -> None:
    failure = error("twice", "seen twice", notes=("first\nsecond",))
    assert str(failure).splitlines()[1:] == ["  = note: first", "    second"]


def test_a_span_over_lines_is_marked_without_its_indentation() -> None:
    failure = error("long", "too long", span=span_of("a:\n  b: 1\n", ":\n  b"))
    expected = """
        error[long]: too long
         --> run.yaml:1:2
          |
        1 | a:
          |  ^
        2 |   b: 1
          |   ^
    """
    assert str(failure) == rendered(expected)


def test_the_middle_of_a_long_span_is_left_out() -> None:
    text = "\n".join("abcdefghijkl")
    shown = str(error("long", "too long", span=span_of(text, text)))
    assert [line for line in shown.splitlines() if "..." in line] == ["   | ... 6 lines"]


def test_the_gutter_is_as_wide_as_the_largest_line_number() -> None:
    text = "\n" * 8 + "x\ny\n"
    shown = str(error("wide", "two digits", span=span_of(text, "x\ny"))).splitlines()
    assert [shown[3], shown[5]] == [" 9 | x", "10 | y"]


def test_a_span_that_ends_behind_a_newline_marks_no_further_line() -> None:
    shown = str(error("end", "ends late", span=span_of("a\nb\n", "a\n")))
    assert "2 |" not in shown


@pytest.mark.parametrize("text", ["日本x", "\tx", "e\u0301x"])
def test_the_caret_stands_under_wide_and_combining_characters(text: str) -> None:
    last, caret = str(error("wide", "here", span=span_of(text, "x"))).splitlines()[-2:]
    num_cells = {"日本x": 4, "\tx": 4, "e\u0301x": 1}[text]
    assert (last.endswith("x"), caret) == (True, "  | " + " " * num_cells + "^")


def test_carets_are_as_wide_as_the_characters_above_them() -> None:
    shown = str(error("wide", "here", span=span_of("a日本\tb", "日本\t"))).splitlines()
    assert shown[-2:] == ["1 | a日本 b", "  |  ^^^^^"]


def test_an_empty_span_at_the_end_still_gets_a_caret() -> None:
    source = SourceText("run.yaml", "a: [")
    assert str(error("open", "not closed", span=Span(source, 4, 4))).endswith("  |     ^")


def test_color_is_laid_over_the_same_text() -> None:
    finding = Diagnostic(Severity.WARNING, "slow", "slow disk", span_of("disk: a", "disk"))
    painted = render(finding, color=True)
    for code in ("\x1b[1;33m", "\x1b[1m", "\x1b[0m"):
        painted = painted.replace(code, "")
    assert painted == render(finding)


def test_severities_have_their_own_color() -> None:
    shown = {render(Diagnostic(s, "c", "m"), color=True).split("m")[0] for s in Severity}
    assert len(shown) == len(Severity)


def test_diagnostics_are_told_on_the_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    tell(Diagnostic(Severity.WARNING, "some-code", text) for text in ("one", "other"))
    assert capsys.readouterr() == ("", "warning[some-code]: one\nwarning[some-code]: other\n")


def test_an_error_shows_all_its_diagnostics_in_order() -> None:
    both = OpenwaferError(*(Diagnostic(Severity.ERROR, code, "m") for code in ("a", "b")))
    assert str(both) == "error[a]: m\n\nerror[b]: m"


def test_an_error_needs_a_diagnostic() -> None:
    with pytest.raises(ValueError, match="at least one diagnostic"):
        OpenwaferError()


def test_an_error_survives_the_way_between_processes() -> None:
    failure = error("lost", "lost", span=span_of("abc", "b"))
    assert str(pickle.loads(pickle.dumps(failure))) == str(failure)


@pytest.mark.parametrize(
    ("word", "expected"),
    [("stpes", "did you mean 'steps'?"), ("zzz", "known here: steps, seed")],
)
def test_help_names_the_closest_word_or_all_of_them(word: str, expected: str) -> None:
    assert did_you_mean(word, ["steps", "seed"]) == expected


def test_no_help_is_made_up_where_nothing_is_known() -> None:
    assert did_you_mean("steps", []) == ""


def test_of_a_long_line_what_lies_around_the_caret_is_shown() -> None:
    text = "x" * 20_000 + "wrong" + "y" * 20_000
    shown, marks = render(
        Diagnostic(Severity.ERROR, "code", "no", span_of(text, "wrong"))
    ).splitlines()[-2:]
    assert len(shown) < 260
    assert shown[marks.index("^") : marks.rindex("^") + 1] == "wrong"
    assert shown.startswith("1 | ...x")
    assert shown.endswith("y...")


def test_a_long_span_is_shown_with_its_beginning() -> None:
    found = Diagnostic(Severity.ERROR, "code", "no", span_of("var " + "z" * 40_000, "z" * 40_000))
    shown, marks = render(found).splitlines()[-2:]
    assert len(shown) < 260
    assert (shown.index("z"), len(shown) - len("...")) == (marks.index("^"), len(marks))


def test_a_long_word_of_a_message_loses_its_middle() -> None:
    text = render(Diagnostic(Severity.ERROR, "code", f"no '{'z' * 40_000}' here"))
    assert len(text) < 1100
    assert re.search(r"no 'z+\.\.\.z+' here$", text)
