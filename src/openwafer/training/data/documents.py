"""Reads the documents of a data source one by one, in an order that never changes."""

import glob
import json
import os
import sysconfig
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from openwafer.config import InvalidFieldError, convert_fields
from openwafer.diagnostics import OpenwaferError, counted, did_you_mean, error
from openwafer.json_files import JsonMistake, Unchecked, convert, decode, path_named

INSTALLED_PACKAGES = frozenset({"site-packages", "dist-packages"})
TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})
MAX_NAMED = 3
_DEFAULT_SPLIT = "train"


class SourceKind(StrEnum):
    """How the files of a source hold documents."""

    TEXT = "text"
    JSONL = "jsonl"
    PARQUET = "parquet"
    HUGGING_FACE = "hugging-face"
    STANDARD_LIBRARY = "standard-library"


_TABLES = (SourceKind.JSONL, SourceKind.PARQUET, SourceKind.HUGGING_FACE)
_OPTIONS: Mapping[str, tuple[object, tuple[SourceKind, ...]]] = {
    "column": ("text", _TABLES),
    "split": (_DEFAULT_SPLIT, (SourceKind.HUGGING_FACE,)),
    "separator": ("", (SourceKind.TEXT,)),
    "include_tests": (False, (SourceKind.STANDARD_LIBRARY,)),
}
_FOLDER_GLOB = {SourceKind.TEXT: "*", SourceKind.JSONL: "*.jsonl", SourceKind.PARQUET: "*.parquet"}


@dataclass(frozen=True)
class DataSource:
    """A set of documents.

    Attributes:
        kind: ``text`` (a file is a document), ``jsonl`` (a line is), ``parquet`` (a row is),
            ``hugging-face`` (a row of a folder written by ``Dataset.save_to_disk``), or
            ``standard-library`` (the sources of the running Python; a file is a document).
        paths: files, folders and globs, read in this order and sorted inside; ``**`` crosses
            folders. For ``hugging-face``, folders of saved datasets and globs of such; for
            ``standard-library``, globs inside the library, none means all of it.
        column: JSONL field or table column that holds the text.
        split: which split of a saved ``DatasetDict`` to read.
        separator: for ``text``, cuts each file into documents; empty keeps files whole.
        include_tests: for ``standard-library``, reads its test suites as well.
    """

    kind: SourceKind
    paths: tuple[str, ...] = ()
    column: str = "text"
    split: str = _DEFAULT_SPLIT
    separator: str = ""
    include_tests: bool = False

    def __post_init__(self) -> None:
        convert_fields(self)
        if not self.paths and self.kind is not SourceKind.STANDARD_LIBRARY:
            raise InvalidFieldError(
                "paths",
                f"a source of kind '{self.kind}' needs some, but has none",
                help="name files, folders or globs, for example paths: [corpus/*.txt]",
            )
        for name, (default, kinds) in _OPTIONS.items():
            if self.kind not in kinds and getattr(self, name) != default:
                raise InvalidFieldError(
                    name,
                    f"means nothing for kind '{self.kind}', only for {', '.join(kinds)}",
                    help="leave it out, or choose another kind",
                )


def list_files(source: DataSource) -> tuple[Path, ...]:
    """The files of ``source`` in reading order, each once; raises where a path matches nothing."""
    match source.kind:
        case SourceKind.HUGGING_FACE:
            folders = [folder for path in source.paths for folder in _folders(path)]
            found = [file for folder in folders for file in _saved_dataset(folder, source.split)]
        case SourceKind.STANDARD_LIBRARY:
            found = list(_standard_library(source))
        case SourceKind.TEXT | SourceKind.JSONL | SourceKind.PARQUET:
            pattern = _FOLDER_GLOB[source.kind]
            found = [file for path in source.paths for file in _matches(path, pattern)]
    return tuple(dict.fromkeys(found))


def fingerprint(source: DataSource, files: Iterable[Path]) -> str:
    """Changes with the settings and with the name, size or time of change of any file."""
    digest = xxhash.xxh3_128(repr(source).encode())
    for file in files:
        status = file.stat()
        entry = f"\0{file.absolute()}\0{status.st_size}\0{status.st_mtime_ns}"
        digest.update(os.fsencode(entry))
    return digest.hexdigest()


def _matches(path: str, pattern: str) -> list[Path]:
    given = Path(path).expanduser()
    if given.is_file():
        return [given]
    if given.is_dir():
        found = [file for file in given.rglob(pattern) if not _is_hidden(file, given)]
    else:
        found = [Path(name) for name in glob.glob(str(given), recursive=True)]
    files = sorted((file for file in found if file.is_file()), key=Path.as_posix)
    if not files:
        raise _unmatched("file", given / "**" / pattern if given.is_dir() else given)
    return files


def _folders(path: str) -> list[Path]:
    given = Path(path).expanduser()
    if given.is_dir():
        return [given]
    found = (Path(name) for name in glob.glob(str(given), recursive=True))
    folders = sorted((folder for folder in found if folder.is_dir()), key=Path.as_posix)
    if not folders:
        raise _unmatched("folder", given)
    return folders


def _unmatched(what: str, sought: Path) -> OpenwaferError:
    return error(
        "data-not-found",
        f"no data {what} matches '{sought}'",
        notes=(f"relative paths start at {Path.cwd()}",),
        help="check the path; a folder, a file or a glob such as corpus/**/*.txt will do",
    )


def _is_hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _standard_library(source: DataSource) -> Iterator[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    unwanted = INSTALLED_PACKAGES | (frozenset() if source.include_tests else TEST_FOLDERS)
    for pattern in source.paths or ("**/*.py",):
        found = [
            file
            for file in root.glob(pattern)
            if file.is_file() and unwanted.isdisjoint(file.relative_to(root).parts)
        ]
        if not found:
            raise error(
                "data-not-found",
                f"no file of the Python standard library matches '{pattern}' in {root}",
                help="leave paths empty to read all of it; install Python with its sources",
            )
        yield from sorted(found, key=Path.as_posix)


def _saved_dataset(folder: Path, split: str) -> list[Path]:
    if (folder / "dataset_dict.json").is_file():
        splits = _entry(folder / "dataset_dict.json", "splits")
        if split not in splits:
            raise error(
                "no-such-split",
                f"the dataset {folder} has no split '{split}'",
                help=did_you_mean(split, splits),
            )
        return _arrow_files(folder / split)
    files = _arrow_files(folder)
    if split not in (_DEFAULT_SPLIT, read_json(folder / "state.json").get("_split")):
        raise error(
            "no-such-split",
            f"the dataset {folder} is not divided into splits, so that it has no '{split}'",
            help="leave split out, or name the folder that DatasetDict.save_to_disk wrote",
        )
    return files


def _arrow_files(folder: Path) -> list[Path]:
    state_file = folder / "state.json"
    if not state_file.is_file():
        below = sorted(folder.glob("*/dataset_dict.json")) or sorted(folder.glob("*/state.json"))
        raise error(
            "not-a-saved-dataset",
            f"{folder} is no saved Hugging Face dataset: it has no state.json",
            notes=tuple(f"there is one in {file.parent}" for file in below[:MAX_NAMED]),
            help="write the folder with datasets.Dataset.save_to_disk",
        )
    if read_json(state_file).get("_indices_data_files"):
        raise error(
            "dataset-with-indices",
            f"{state_file} reorders its rows by an index table, which is not read here",
            help="load the dataset, call flatten_indices() and save it again",
        )
    listed = _listed(state_file)
    for file in listed:
        if not file.is_file():
            raise error(
                "data-not-found",
                f"{file} is missing, but {state_file} lists it",
                help="copy the dataset folder again, whole",
            )
    return listed


@dataclass(frozen=True)
class _DataFile:
    filename: str


def _listed(state_file: Path) -> list[Path]:
    try:
        files = convert(tuple[_DataFile, ...], _entry(state_file, "_data_files"))
    except JsonMistake as problem:
        raise error(
            "not-a-saved-dataset", f"{state_file}: _data_files: {problem}", help=_SAVE_AGAIN
        ) from None
    return [path_named(file.filename, state_file) for file in files]


def _entry(path: Path, key: str) -> Any:
    content = read_json(path)
    if key not in content:
        raise error(
            "not-a-saved-dataset",
            f"{path} has no '{key}'; it has {', '.join(map(repr, content)) or 'nothing'}",
            help=_SAVE_AGAIN,
        )
    return content[key]


_SAVE_AGAIN = "write the folder with datasets.Dataset.save_to_disk"


def read_json(path: Path) -> Mapping[str, Any]:
    """The object in a JSON file; a file that holds none is a clear error."""
    try:
        return decode(Unchecked, path.read_bytes())
    except JsonMistake as problem:
        raise error("bad-json", f"{path}: {problem}", help="restore the file") from None


EXCERPT_CHARS = 60
ROWS_AT_ONCE = 1024
READ_BYTES = 1 << 20
# Keys of a message, as templates read them and as some data sets write them.
MESSAGES = ({"role", "content"}, {"from", "value"})
JOINED = "; or join the items of each list to one text"


@dataclass(frozen=True)
class Document:
    """One text.

    Attributes:
        text: holds at least one visible character.
        path: file it came from.
        row: line, table row or piece in that file, from 1; ``None`` when the file is one document.
        source_bytes: its share of the file's size, for progress; exact for text and JSONL.
    """

    text: str
    path: Path
    row: int | None
    source_bytes: int


def read_documents(source: DataSource) -> Iterator[Document]:
    """Yield every document with visible text; a source without any is an error."""
    yield from read_files(source, list_files(source))


def read_files(source: DataSource, files: Sequence[Path]) -> Iterator[Document]:
    """Yield the documents of ``files``, which ``list_files(source)`` gave."""
    is_empty = True
    for file in files:
        for document in _read_file(source, file):
            is_empty = False
            yield document
    if is_empty:
        raise error(
            "empty-corpus",
            f"the data source '{source.kind}' holds no text: {len(files)} files read, "
            "0 documents with a visible character",
            notes=tuple(f"read {file}" for file in files[:3]),
            help="check the paths of the source and that the files are not empty",
        )


def _read_file(source: DataSource, file: Path) -> Iterator[Document]:
    try:
        for document in _READERS[source.kind](file, source):
            if not (document.text == "" or document.text.isspace()):
                yield document
    except (OSError, UnicodeDecodeError, pa.ArrowException) as problem:
        raise error(
            "unreadable-data",
            f"{file} cannot be read as {source.kind} data: {problem}",
            help="check that the file is whole, readable, and of this kind",
        ) from problem


def _read_text(file: Path, source: DataSource) -> Iterator[Document]:
    if not source.separator:
        raw = file.read_bytes()
        yield Document(_decode(raw, str(file)), file, None, len(raw))
        return
    separator = source.separator.encode()
    offset = 0
    for row, raw in enumerate(pieces_between(file, separator), start=1):
        yield Document(_decode(raw, str(file), offset), file, row, len(raw) + len(separator))
        offset += len(raw) + len(separator)


def pieces_between(
    file: Path, separator: bytes, *, read_bytes: int = READ_BYTES
) -> Iterator[bytes]:
    """What stands between the separators of a file, which may be larger than memory.

    In UTF-8, no character's bytes occur inside of others, so that bytes can be searched.
    """
    held = bytearray()
    with file.open("rb") as data:
        while chunk := data.read(read_bytes):
            start, searched = 0, max(0, len(held) - len(separator) + 1)
            held += chunk
            while (end := held.find(separator, max(start, searched))) >= 0:
                yield bytes(held[start:end])
                start = end + len(separator)
            del held[:start]
    yield bytes(held)


def _read_python(file: Path, source: DataSource) -> Iterator[Document]:
    raw = file.read_bytes()
    try:
        yield Document(raw.decode(), file, None, len(raw))
    except UnicodeDecodeError as problem:
        # The library's tests keep a few files in other encodings, some broken on purpose.
        if not source.include_tests:
            raise _bad_utf8(str(file), problem) from None


def _read_jsonl(file: Path, source: DataSource) -> Iterator[Document]:
    with file.open("rb") as lines:
        for row, raw in enumerate(lines, start=1):
            if raw.isspace():
                continue
            origin = f"{file}:{row}"
            fields = _parse_line(_decode(raw, origin), origin)
            if source.column not in fields:
                chats = [name for name, value in fields.items() if _is_chat(_item_keys(value))]
                raise error(
                    "missing-field",
                    f"{origin}: the object has no field '{source.column}'; it has "
                    f"{', '.join(map(repr, fields)) or 'no fields'}",
                    help=_from_chat(chats[0])
                    if chats
                    else f"set column to the field with the text; "
                    f"{did_you_mean(source.column, fields)}",
                )
            text = _checked_text(fields[source.column], source.column, origin)
            yield Document(text, file, row, len(raw))


def _parse_line(line: str, origin: str) -> dict[str, Any]:
    excerpt = line.strip()[:EXCERPT_CHARS]
    try:
        value = json.loads(line)
    except json.JSONDecodeError as problem:
        raise error(
            "bad-jsonl",
            f"{origin}:{problem.colno}: the line is no JSON: {problem.msg}",
            notes=(f"the line begins: {excerpt}",),
            help="a JSONL file holds one JSON object a line",
        ) from None
    except RecursionError:
        raise error(
            "bad-jsonl",
            f"{origin}: the line is nested too deep to be read",
            notes=(f"the line begins: {excerpt}",),
            help="drop the line, or give its text a field of its own",
        ) from None
    if not isinstance(value, dict):
        raise error(
            "bad-jsonl",
            f"{origin}: expected a JSON object, found {excerpt}",
            help="a JSONL file holds one JSON object a line",
        )
    return value


def _read_parquet(file: Path, source: DataSource) -> Iterator[Document]:
    with pq.ParquetFile(file) as table:
        _check_column(table.schema_arrow, source.column, file)
        batches = table.iter_batches(ROWS_AT_ONCE, columns=[source.column])
        row_bytes = file.stat().st_size // max(1, table.metadata.num_rows)
        yield from _read_rows(batches, source.column, file, lambda _: row_bytes)


def _read_arrow(file: Path, source: DataSource) -> Iterator[Document]:
    with pa.memory_map(str(file)) as mapped, pa.ipc.open_stream(mapped) as batches:
        _check_column(batches.schema, source.column, file)
        yield from _read_rows(batches, source.column, file, _mean_row_bytes)


def _mean_row_bytes(batch: Any) -> int:
    return int(batch.nbytes // max(1, batch.num_rows))


def _read_rows(
    batches: Iterable[Any], column: str, file: Path, row_bytes: Callable[[Any], int]
) -> Iterator[Document]:
    row = 0
    for batch in batches:
        for value in batch.column(column).to_pylist():
            row += 1
            text = _checked_text(value, column, f"{file}: row {row}")
            yield Document(text, file, row, row_bytes(batch))


def _check_column(schema: Any, column: str, file: Path) -> None:
    if column not in schema.names:
        chats = [field.name for field in schema if _is_chat(_item_fields(field.type))]
        raise error(
            "missing-column",
            f"{file} has no column '{column}'; it has {', '.join(map(repr, schema.names))}",
            help=_from_chat(chats[0])
            if chats
            else f"set column to the one with the text; {did_you_mean(column, schema.names)}",
        )
    kind = schema.field(column).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    is_text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    if not any(test(kind) for test in is_text):
        is_chat = _is_chat(_item_fields(kind))
        raise error(
            "wrong-column-type",
            f"column '{column}' of {file} holds {'chats' if is_chat else kind}, expected string",
            help=_from_chat(column)
            if is_chat
            else f"set column to the one with the text{JOINED if _is_list(kind) else ''}",
        )


def _checked_text(value: object, column: str, origin: str) -> str:
    if not isinstance(value, str):
        found, remedy = _no_text(value, column)
        raise error(
            "not-a-text", f"{origin}: '{column}' holds {found}, expected a text", help=remedy
        )
    try:
        value.encode()
    except UnicodeEncodeError as problem:
        raise error(
            "bad-unicode",
            f"{origin}: character {problem.start} of '{column}' is {value[problem.start]!a}, "
            "half of a surrogate pair, which is no character",
            help="write the other half beside it, or remove it",
        ) from None
    return value


def _no_text(value: object, column: str) -> tuple[str, str]:
    """What stands in the place of a text, and what to do about it."""
    if _is_chat(_item_keys(value)):
        return "a chat", _from_chat(column)
    if isinstance(value, list):
        return f"a list of {counted(len(value), 'item')}", f"set column to the text{JOINED}"
    if isinstance(value, dict):
        return f"an object with {', '.join(map(repr, value)) or 'no fields'}", (
            "give the text a field of its own, outside of the object"
        )
    found = "null" if value is None else f"{type(value).__name__} {value!r:.{EXCERPT_CHARS}}"
    return found, "drop such rows or give them a text"


def _item_keys(value: object) -> Collection[str]:
    """Keys of the objects in a list."""
    first = value[0] if isinstance(value, list) and value else None
    return first.keys() if isinstance(first, dict) else ()


def _is_list(kind: Any) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def _item_fields(kind: Any) -> Collection[str]:
    """As :func:`_item_keys`, by the type of a column."""
    is_of_objects = _is_list(kind) and pa.types.is_struct(kind.value_type)
    return [field.name for field in kind.value_type] if is_of_objects else ()


def _is_chat(keys: Collection[str]) -> bool:
    return any(message <= set(keys) for message in MESSAGES)


def _from_chat(column: str) -> str:
    return (
        "a chat (messages with role and content) becomes a text by its model's template: "
        f"row['text'] = tokenizer.apply_chat_template(row['{column}'], tokenize=False); then "
        "train on column: text with tokenizer: {path: FOLDER, split_special_tokens: false}"
    )


def _decode(raw: bytes, origin: str, offset: int = 0) -> str:
    """The text of bytes that begin at `offset`; a byte order mark may stand before the first."""
    try:
        return raw.decode("utf-8" if offset else "utf-8-sig")
    except UnicodeDecodeError as problem:
        raise _bad_utf8(origin, problem, offset) from None


def _bad_utf8(origin: str, problem: UnicodeDecodeError, offset: int = 0) -> OpenwaferError:
    found, byte = problem.object[problem.start], offset + problem.start
    return error(
        "bad-utf8",
        f"{origin}: byte 0x{found:02x} at offset {byte} is no UTF-8: {problem.reason}",
        help="convert the file to UTF-8 (iconv -f latin1 -t utf-8), or leave it out with a glob",
    )


_READERS: dict[SourceKind, Callable[[Path, DataSource], Iterator[Document]]] = {
    SourceKind.TEXT: _read_text,
    SourceKind.JSONL: _read_jsonl,
    SourceKind.PARQUET: _read_parquet,
    SourceKind.HUGGING_FACE: _read_arrow,
    SourceKind.STANDARD_LIBRARY: _read_python,
}
