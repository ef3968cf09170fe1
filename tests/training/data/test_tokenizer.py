"""A tokenizer is trained or loaded, loses nothing, and is the same on every machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers
from transformers import AutoTokenizer

from openwafer.diagnostics import OpenwaferError
from openwafer.training.data.tokenizer import load_tokenizer, train_tokenizer
from tests.training.data.corpora import TEXTS, message

TRAINED = train_tokenizer(TEXTS, 300)

TRAIN_AGAIN = """
import json, sys
from openwafer.training.data.tokenizer import train_tokenizer
print(train_tokenizer(json.load(sys.stdin), 300).fingerprint)
"""


def save_words(file: Path, *words: str) -> Path:
    """A tokenizer of whole words, as another project might have saved it."""
    backend = Backend(models.WordLevel({"[UNK]": 0, "cat": 1}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(list(words))
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    backend.save(str(file))
    return file


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_comes_back_from_its_tokens(text: str) -> None:
    assert TRAINED.decode(TRAINED.encode(text)) == text


def test_the_vocabulary_has_the_size_asked_for() -> None:
    assert TRAINED.vocab_size == 300


def test_the_end_of_text_inside_a_text_is_no_end() -> None:
    assert TRAINED.end_of_text_id not in TRAINED.encode("a<|endoftext|>b")


@pytest.mark.slow
def test_another_process_trains_the_same_tokenizer() -> None:
    arguments = [sys.executable, "-c", TRAIN_AGAIN]
    found = subprocess.check_output(arguments, input=json.dumps(TEXTS), text=True)
    assert found.strip() == TRAINED.fingerprint


def test_a_text_of_one_character_does_not_stop_the_training() -> None:
    # Uncut, this text takes half a minute.
    assert train_tokenizer(["0" * 200_000], 300).vocab_size < 300


def test_a_saved_tokenizer_loads_as_the_same(tmp_path: Path) -> None:
    TRAINED.save(tmp_path)
    assert load_tokenizer(tmp_path).fingerprint == TRAINED.fingerprint


def test_transformers_loads_the_saved_folder(tmp_path: Path) -> None:
    TRAINED.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs(TEXTS[7])["input_ids"] == TRAINED.encode(TEXTS[7])
    assert theirs.eos_token_id == TRAINED.end_of_text_id


def test_a_folder_saved_by_transformers_keeps_its_end_of_text(tmp_path: Path) -> None:
    TRAINED.save(tmp_path)
    AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path / "theirs")
    assert load_tokenizer(tmp_path / "theirs").encode(TEXTS[3]) == TRAINED.encode(TEXTS[3])


def test_the_end_of_text_comes_from_the_settings_of_the_folder(tmp_path: Path) -> None:
    save_words(tmp_path / "tokenizer.json", "</s>")
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "</s>"}}')
    assert load_tokenizer(tmp_path).end_of_text == "</s>"


def test_a_saved_truncation_or_padding_is_not_applied(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save_words(tmp_path / "t.json", "</s>"), "</s>")
    assert tokenizer.encode("cat cat cat") == [1, 1, 1]


def test_a_missing_end_of_text_lists_the_special_tokens(tmp_path: Path) -> None:
    file = save_words(tmp_path / "t.json", "</s>", "<s>")
    with pytest.raises(OpenwaferError) as caught:
        load_tokenizer(file)
    assert str(caught.value) == (
        f"error[no-end-of-text]: {file} has no token '<|endoftext|>' to end documents with\n"
        "  = note: its special tokens: </s>, <s>\n"
        "  = help: set tokenizer.end_of_text to the one that ends a text"
    )


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError) as caught:
        load_tokenizer(tmp_path)
    assert message(caught.value) == f"there is no tokenizer at {tmp_path}/tokenizer.json"


def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(OpenwaferError, match=r"tokenizer\.json is no tokenizer: "):
        load_tokenizer(tmp_path)


def test_what_transformers_knows_of_a_tokenizer_is_kept(tmp_path: Path) -> None:
    TRAINED.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path, pad_token="!", model_max_length=64)
    theirs.chat_template = "{{ messages }}"
    theirs.save_pretrained(tmp_path / "theirs")
    load_tokenizer(tmp_path / "theirs").save(tmp_path)
    kept = AutoTokenizer.from_pretrained(tmp_path)
    assert (kept.pad_token, kept.model_max_length) == ("!", 64)
    assert kept.chat_template == "{{ messages }}"


def test_a_tokenizer_class_in_a_file_that_is_not_copied_is_not_asked_for(tmp_path: Path) -> None:
    TRAINED.save(tmp_path)
    settings = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": ["mine.Mine", None]}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    load_tokenizer(tmp_path).save(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).eos_token == TRAINED.end_of_text


CHAT = "<|im_start|>user\ncat<|im_end|>"


def of_chats(folder: Path) -> Path:
    """A tokenizer with the special tokens of a chat template."""
    TRAINED.save(folder)
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    backend.save(str(folder / "chat.json"))
    return folder / "chat.json"


def test_special_tokens_of_a_chat_are_characters_unless_they_are_asked_for(tmp_path: Path) -> None:
    path = of_chats(tmp_path)
    start = load_tokenizer(path).vocab_size - 2
    assert start not in load_tokenizer(path).encode(CHAT)
    asked = load_tokenizer(path, split_special_tokens=False).encode(CHAT)
    assert [token for token in asked if token >= start] == [start, start + 1]


def test_a_chat_is_encoded_as_transformers_does(tmp_path: Path) -> None:
    kept = load_tokenizer(of_chats(tmp_path), split_special_tokens=False)
    kept.save(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path)(CHAT)["input_ids"] == kept.encode(CHAT)


def test_a_saved_tokenizer_of_chats_loads_as_the_same(tmp_path: Path) -> None:
    kept = load_tokenizer(of_chats(tmp_path), split_special_tokens=False)
    kept.save(tmp_path)
    assert load_tokenizer(tmp_path).fingerprint == kept.fingerprint
    assert kept.fingerprint != load_tokenizer(of_chats(tmp_path)).fingerprint
