"""A tokenizer trained on the spot or loaded from a file, with one end-of-text token."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Final

import tokenizers
import xxhash
from tokenizers import decoders, models, pre_tokenizers, trainers

from openwafer import atomic_file
from openwafer.config import Bytes, InvalidFieldError, PathLike, convert_fields, path_of
from openwafer.diagnostics import error
from openwafer.training.data.sources import read_json

END_OF_TEXT = "<|endoftext|>"
SMALLEST_VOCABULARY = 257
# Training takes time quadratic in the longest run of one character: a line of a million zeros
# would take hours, 16384 of them take 0.2 s.
TRAINING_PIECE_CHARS = 16 * 1024
TOKENIZER_FILE = "tokenizer.json"
SETTINGS_FILE = "tokenizer_config.json"
CHAT_TEMPLATE_FILE = "chat_template.jinja"


@dataclass(frozen=True)
class TokenizerTraining:
    """Trains a byte-level BPE on the source.

    Attributes:
        vocab_size: number of tokens; a small corpus may fill fewer.
        training_bytes: how much of the source, from its start, to train on.
        special_tokens: tokens that no text becomes, such as one to hide others behind.
    """

    vocab_size: int = 8192
    training_bytes: Bytes = 256 * 1024**2
    # Tokens that were made before this option existed are not made again.
    special_tokens: tuple[str, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        convert_fields(self)
        if self.vocab_size < SMALLEST_VOCABULARY:
            raise InvalidFieldError(
                "vocab_size",
                f"expected at least {SMALLEST_VOCABULARY}, found {self.vocab_size}: "
                "each byte and the end of text are tokens",
                help="4096 to 50000 are usual",
            )
        if self.training_bytes < 1:
            raise InvalidFieldError(
                "training_bytes",
                f"expected at least 1, found {self.training_bytes}",
                help="leave it out for 256MiB",
            )


# The setting of transformers' tokenizers by which the spelling of special tokens is plain text.
SPLIT: Final = "split_special_tokens"
KEPT: Final = "special tokens kept"


@dataclass(frozen=True)
class SavedTokenizer:
    """Uses a tokenizer that exists.

    Attributes:
        path: a ``tokenizer.json``, or a transformers tokenizer folder that holds one.
        end_of_text: token that ends a document; ``None`` takes the folder's ``eos_token``, or
            else ``<|endoftext|>``.
        split_special_tokens: whether the spelling of a special token in a text is encoded as
            ordinary characters; otherwise as that token, as texts made by a chat template need.
    """

    path: Path
    end_of_text: str | None = None
    split_special_tokens: bool = True

    def __post_init__(self) -> None:
        convert_fields(self)


@dataclass(frozen=True)
class Settings:
    """Files that ``transformers.AutoTokenizer`` reads beside ``tokenizer.json``; unused here.

    Attributes:
        values: content of ``tokenizer_config.json``.
        chat_template: content of ``chat_template.jinja``; ``None`` without one.
    """

    values: Mapping[str, object]
    chat_template: str | None = None


PLAIN_SETTINGS = Settings({"tokenizer_class": "PreTrainedTokenizerFast"})


class Tokenizer:
    """Texts to token ids and back; equal texts give equal ids on every machine.

    The end-of-text token appears only where ``end_of_text_id`` is appended: its spelling inside
    a text is encoded as ordinary characters, unless ``split_special_tokens`` is off.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        end_of_text: str,
        end_of_text_id: int,
        settings: Settings = PLAIN_SETTINGS,
        *,
        split_special_tokens: bool = True,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        # In that library the name says whether their spelling is encoded like any other.
        backend.encode_special_tokens = split_special_tokens
        self._backend = backend
        self.end_of_text = end_of_text
        self.end_of_text_id = end_of_text_id
        self._settings = settings

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest token id, so that a row of this embedding exists for each."""
        return max(self._backend.get_vocab(with_added_tokens=True).values()) + 1

    @cached_property
    def num_text_ids(self) -> int:
        """One more than the largest id in tokenised texts; split special tokens are in none."""
        if not self.is_splitting:
            return self.vocab_size
        ids = {*self._backend.get_vocab(with_added_tokens=True).values()} - {*self.special_ids}
        return max(*ids, self.end_of_text_id) + 1

    @cached_property
    def special_ids(self) -> tuple[int, ...]:
        """Ids of special tokens."""
        added = self._backend.get_added_tokens_decoder()
        return tuple(token_id for token_id, token in added.items() if token.special)

    def mask_id(self, token: str | None = None) -> int:
        """Id of a token to hide others behind; ``None`` is that of the folder's settings.

        Raises:
            OpenwaferError: ``no-mask-token``.
        """
        name = token or _named(self._settings, "mask_token")
        found = None if name is None else self._backend.token_to_id(name)
        if found is None:
            raise error(
                "no-mask-token",
                "the tokenizer has no mask token"
                if name is None
                else f"the tokenizer has no token {name!r} to hide others behind",
                help="name one in masking.token; a tokenizer that is trained has what "
                "tokenizer.special_tokens names, for example ['<|mask|>']",
            )
        return found

    def id_of(self, token: str, use: str) -> int:
        """Id of a token that a setting of the data names.

        Raises:
            OpenwaferError: ``no-special-token``.
        """
        found = self._backend.token_to_id(token)
        if found is None:
            raise error(
                "no-special-token",
                f"the tokenizer has no token {token!r} for {use}",
                help="a tokenizer that is trained has what tokenizer.special_tokens names; of a "
                "saved one, name a token that it has",
            )
        return int(found)

    @property
    def chat_settings(self) -> str:
        """All in its folder by which chats are written; empty without a template."""
        template = self._settings.chat_template or self._settings.values.get("chat_template")
        # A template may name the tokens of the folder, such as bos_token.
        tokens = {key: v for key, v in self._settings.values.items() if "_token" in key}
        return f"{template!r} {sorted(tokens.items())}" if template else ""

    @property
    def is_splitting(self) -> bool:
        """Whether the spelling of a special token in a text is encoded as ordinary characters."""
        return bool(self._backend.encode_special_tokens)

    @cached_property
    def fingerprint(self) -> str:
        """Equal for equal tokenizers."""
        content = f"{self.end_of_text_id} {self._backend.to_str()}"
        if not self.is_splitting:
            content += f" {KEPT}"
        return xxhash.xxh3_128_hexdigest(content.encode())

    def encode(self, text: str) -> list[int]:
        """Token ids of ``text``, without end of text."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text, in parallel over the texts."""
        found = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return [encoding.ids for encoding in found]

    def encode_marking(self, text: str, first_char: int) -> tuple[list[int], list[bool]]:
        """Token ids of `text`, and whether each begins at a character or behind it."""
        found = self._backend.encode(text, add_special_tokens=False)
        return found.ids, [begin >= first_char for begin, _ in found.offsets]

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ``ids``; special tokens leave no trace."""
        return str(self._backend.decode(list(ids)))

    def save(self, folder: PathLike) -> None:
        """Write ``tokenizer.json`` and the settings ``transformers.AutoTokenizer`` reads."""
        folder = path_of(folder, "folder")
        values = {**self._settings.values, "eos_token": self.end_of_text}
        values.pop(SPLIT, None)
        if not self.is_splitting:
            values[SPLIT] = False
        atomic_file.write_text(folder / SETTINGS_FILE, json.dumps(values, indent=2) + "\n")
        if self._settings.chat_template is not None:
            atomic_file.write_text(folder / CHAT_TEMPLATE_FILE, self._settings.chat_template)
        atomic_file.write_text(folder / TOKENIZER_FILE, self._backend.to_str(pretty=True))


def train_tokenizer(
    texts: Iterable[str],
    vocab_size: int,
    special_tokens: Sequence[str] = (),
    chat_template: str | None = None,
) -> Tokenizer:
    """Train a byte-level BPE; equal texts in equal order give equal tokenizers."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT, *special_tokens],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    pieces = (piece for text in texts for piece in cut_at_line_ends(text, TRAINING_PIECE_CHARS))
    backend.train_from_iterator(pieces, trainer)
    settings = replace(PLAIN_SETTINGS, chat_template=chat_template)
    return Tokenizer(backend, END_OF_TEXT, backend.get_vocab()[END_OF_TEXT], settings)


def cut_at_line_ends(text: str, max_chars: int) -> Iterator[str]:
    """Yield ``text`` in pieces of at most ``max_chars``, each up to its last line end."""
    start = 0
    while len(text) - start > max_chars:
        line_end = text.rfind("\n", start, start + max_chars) + 1
        stop = line_end or start + max_chars
        yield text[start:stop]
        start = stop
    yield text[start:]


def load_tokenizer(
    path: PathLike, end_of_text: str | None = None, *, split_special_tokens: bool | None = None
) -> Tokenizer:
    """Load a ``tokenizer.json``, or a folder that holds one.

    Args:
        path: the file, or a folder as written by ``save_pretrained`` or ``Tokenizer.save``.
        end_of_text, split_special_tokens: see ``SavedTokenizer``; ``None`` is what the folder says.
    """
    path = path_of(path, "path")
    file = path / TOKENIZER_FILE if path.is_dir() else path
    if not file.is_file():
        raise error(
            "tokenizer-not-found",
            f"there is no tokenizer at {file}",
            help="name a tokenizer.json or a folder with one; "
            "transformers writes it: AutoTokenizer.from_pretrained(NAME).save_pretrained(FOLDER)",
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(file))
    except Exception as problem:
        # The library raises plain Exception for every fault of the file.
        raise error(
            "bad-tokenizer",
            f"{file} is no tokenizer: {problem}",
            help="restore the file, or save the tokenizer again",
        ) from problem
    settings = _saved_settings(path)
    token = end_of_text or _named(settings, "eos_token") or END_OF_TEXT
    token_id = backend.token_to_id(token)
    if token_id is None:
        special = [t.content for t in backend.get_added_tokens_decoder().values() if t.special]
        raise error(
            "no-end-of-text",
            f"{file} has no token '{token}' to end documents with",
            notes=(f"its special tokens: {', '.join(special) or 'none'}",),
            help="set tokenizer.end_of_text to the one that ends a text",
        )
    if split_special_tokens is None:
        split_special_tokens = settings.values.get(SPLIT) is not False
    return Tokenizer(backend, token, token_id, settings, split_special_tokens=split_special_tokens)


def _saved_settings(folder: Path) -> Settings:
    if not (folder / SETTINGS_FILE).is_file():
        return PLAIN_SETTINGS
    values = dict(read_json(folder / SETTINGS_FILE))
    if values.pop("auto_map", None):
        # The class is in a Python file of that folder, which is not copied.
        values |= PLAIN_SETTINGS.values
    template = folder / CHAT_TEMPLATE_FILE
    return Settings(values, template.read_text(encoding="utf-8") if template.is_file() else None)


def _named(settings: Settings, key: str) -> str | None:
    token = settings.values.get(key)
    found = token.get("content") if isinstance(token, Mapping) else token
    return found if isinstance(found, str) else None
