"""tokens.json of a run folder: which tokens a run trains on, so that losses can be compared."""

import json
from dataclasses import asdict, dataclass

from openwafer.atomic_file import write_text
from openwafer.config import PathLike, path_of
from openwafer.training.metrics.json_records import (
    check_format,
    parse_json,
    parse_record,
    read_text,
)

FORMAT = "openwafer-run-tokens"
VERSION = 1
TOKENS_FILE = "tokens.json"


@dataclass(frozen=True)
class TokenIdentity:
    """Fingerprints, equal where two runs have them equal bit for bit.

    Attributes:
        tokenizer: fingerprint of the tokenizer and its end of text.
        data: fingerprint of all tokens, trained on and held out.
    """

    tokenizer: str
    data: str


def write_tokens(run_folder: PathLike, identity: TokenIdentity) -> None:
    """Write tokens.json."""
    run_folder = path_of(run_folder, "run_folder")
    document = {"format": FORMAT, "version": VERSION, **asdict(identity)}
    write_text(run_folder / TOKENS_FILE, json.dumps(document) + "\n")


def read_tokens(path: PathLike) -> TokenIdentity:
    """Read tokens.json.

    Raises `OpenwaferError`: run-file-missing, run-file-version, or run-file-corrupt with the key.
    """
    path = path_of(path, "path")
    value = parse_json(read_text(path), str(path))
    check_format(value, FORMAT, VERSION, str(path))
    return parse_record(TokenIdentity, value, str(path))
