"""Lexer, parser and analysis: whatever is written, the end is a program or diagnostics."""

from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from openwafer.sdk.arch.generation import Arch
from tests.examples import examples
from tests.sdk.fuzz import target
from tests.sdk.fuzz.corpus import own_texts
from tests.sdk.fuzz.grammar import random_program
from tests.sdk.fuzz.mutations import mutated, tokens_of

TEXTS = own_texts()
RANDOMS, ARCHS = st.randoms(use_true_random=False), st.sampled_from(list(Arch))
_IN_ONE_FOLDER = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@examples(150, _IN_ONE_FOLDER)
@given(random=RANDOMS, arch=ARCHS)
def test_changed_programs_end_in_a_program_or_diagnostics(
    tmp_path: Path, random: Random, arch: Arch
) -> None:
    text = mutated(random, TEXTS)
    note(text)
    target.codes_of(tmp_path, text, arch)


@examples(100, _IN_ONE_FOLDER)
@given(random=RANDOMS, arch=ARCHS)
def test_programs_by_the_grammar_end_in_a_program_or_diagnostics(
    tmp_path: Path, random: Random, arch: Arch
) -> None:
    text = random_program(random)
    note(text)
    target.codes_of(tmp_path, text, arch)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_any_characters_end_in_diagnostics_of_the_syntax(text: str) -> None:
    target.syntax(text)


@pytest.mark.parametrize("text", TEXTS[::20])
def test_the_words_of_a_text_are_the_text(text: str) -> None:
    assert "".join(tokens_of(text)) == text
