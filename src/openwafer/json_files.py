"""JSON files and headers: decoded by type, sealed by a checksum, every mistake told by its key.

A dataclass is the contract of a file: its field names are the keys, its annotations the types.
Keys that a reader does not know are ignored, so that a file may say more than an older reader
asks for.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import xxhash

from openwafer.diagnostics import OpenwaferError, error

Content = TypeVar("Content")
MAX_SHOWN_CHARS = 60

Count = Annotated[int, msgspec.Meta(ge=0)]
"""A field type: a whole number from zero on."""


class JsonMistake(ValueError):  # noqa: N818 - the file's mistake, not the program's
    """What is wrong with a JSON text, and at which key."""


def encode(content: object) -> bytes:
    """A dataclass, or plain values, as JSON in UTF-8; a number that is not finite becomes null."""
    return msgspec.json.encode(content)


def decode(kind: type[Content], data: bytes | str) -> Content:
    """The `kind` that a JSON text holds. Raises JsonMistake."""
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError as cause:
        raise JsonMistake(_told(cause, decode(object, data))) from cause
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as cause:
        raise JsonMistake(f"not JSON: {_no_text(data) or cause}") from cause


def _no_text(data: bytes | str) -> str:
    """Which byte is no UTF-8, if one is not: not every parser says which."""
    try:
        data.encode() if isinstance(data, str) else data.decode()
    except UnicodeError as wrong:
        return str(wrong)
    return ""


def convert(kind: type[Content], value: object) -> Content:
    """The `kind` that a decoded JSON value stands for. Raises JsonMistake."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as cause:
        raise JsonMistake(_told(cause, value)) from cause


def _told(cause: msgspec.ValidationError, document: object) -> str:
    """What is wrong, with the place in the document and, where it can be found, the value there."""
    text, _, path = str(cause).partition(" - at ")
    text = text.partition(", got ")[0].replace("Object missing required field", "missing key")
    text = _TYPES.sub(lambda types: _WORD.sub(lambda kind: _WORDS[kind[0]], types[1]), text)
    text = f"{text[0].lower()}{text[1:]}".replace("`", "'")
    path = path.replace("`", "").replace("$.", "").removeprefix("$")
    if text.startswith("expected"):
        text += _found(document, path)
    return f"{path}: {text}" if path else text


_TYPES = re.compile(r"(?<!key )`([^`]+)`")
_WORD = re.compile("object|array|float")
_WORDS = {"object": "an object", "array": "a list", "float": "a number"}


def _found(value: Any, path: str) -> str:
    if "..." in path or " in " in path:
        return ""
    for key, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path.replace("][", "].[")):
        value = value[int(index)] if index else value[key]
    text = "null" if value is None else f"{type(value).__name__} {value!r}"
    return f", found {text[:MAX_SHOWN_CHARS]}"


class _Head(msgspec.Struct):
    format: str
    version: int


class _Sealed(msgspec.Struct):
    xxh3_64: str
    content: msgspec.Raw


@dataclass(frozen=True)
class SealedFormat(Generic[Content]):
    """A kind of file whose content has a checksum: XXH3, 64 bits, of its bytes in the file.

    The codes and remedies are those of its errors: for a file that is damaged, and for one of
    another format or version.
    """

    name: str
    version: int
    content: type[Content]
    broken_code: str
    broken_help: str
    version_code: str
    version_help: str

    def encode(self, content: Content) -> bytes:
        """The whole file."""
        data = encode(content)
        head = {"format": self.name, "version": self.version, "xxh3_64": _checksum(data)}
        return encode(head)[:-1] + b',\n"content":' + data + b"}\n"

    def decode(self, path: Path, data: bytes) -> Content:
        """The content of the file `path`. Raises errors of the two codes."""
        try:
            self._require_version(path, decode(_Head, data))
            sealed = decode(_Sealed, data)
            found = _checksum(bytes(sealed.content))
            if found != sealed.xxh3_64:
                raise JsonMistake(f"its content has the checksum {found}, not {sealed.xxh3_64}")
            return decode(self.content, bytes(sealed.content))
        except JsonMistake as cause:
            raise self.broken(path, str(cause)) from cause

    def broken(self, path: Path, reason: str) -> OpenwaferError:
        """The error for a file that is not what its format promises."""
        return error(self.broken_code, f"{path} is damaged: {reason}", help=self.broken_help)

    def _require_version(self, path: Path, head: _Head) -> None:
        if (head.format, head.version) != (self.name, self.version):
            raise error(
                self.version_code,
                f"{path} is {head.format!r} version {head.version}; this program reads "
                f"{self.name!r} version {self.version}",
                help=self.version_help,
            )


def _checksum(data: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(data)


def path_named(name: str, named_in: Path, *, may_link: bool = False) -> Path:
    """The path of a file that the file `named_in` names, which must lie beside or below that one.

    Raises `name-outside` for an absolute path, for one with `..`, and, unless it `may_link`, for a
    link that leads out.
    """
    folder = named_in.parent
    path = folder / name
    is_inside = may_link or path.resolve().is_relative_to(folder.resolve())
    if not name or Path(name).is_absolute() or ".." in Path(name).parts or not is_inside:
        raise error(
            "name-outside",
            f"{named_in} names the file {name!r}, which does not lie in {folder}",
            notes=(f"it would be {path.resolve()}",),
            help="files of a folder lie in it; save or copy the whole folder again, from a source "
            "that you trust",
        )
    return path


Unchecked = dict[str, Any]
"""A field type: an object whose content is somebody else's contract."""
