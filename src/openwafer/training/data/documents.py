"""Reads the documents of a data source one by one, in an order that never changes."""

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from openwafer.diagnostics import OpenwaferError, counted, did_you_mean, error
from openwafer.training.data.chats import (
    Chat,
    Completion,
    Content,
    chat_of,
    is_chat,
    item_keys,
    tools_of,
)
from openwafer.training.data.sources import DataSource, SourceKind, list_files
from openwafer.training.data.streamed_rows import streamed_rows

EXCERPT_CHARS = 60
ROWS_AT_ONCE = 1024
READ_BYTES = 1 << 20
JOINED = "; or join the items of each list to one text"


@dataclass(frozen=True)
class Document:
    """One text or chat.

    Attributes:
        content: a text holds at least one visible character.
        path: file it came from.
        row: line, table row or piece in that file, from 1; ``None`` when the file is one document.
        source_bytes: its share of the file's size, for progress; exact for text and JSONL.
    """

    content: Content
    path: Path
    row: int | None
    source_bytes: int

    @property
    def origin(self) -> str:
        """Its place, for errors."""
        return str(self.path) if self.row is None else f"{self.path}: row {self.row}"

    @property
    def text(self) -> str:
        """Its text, with that of its prompt; a chat has none and is an error."""
        match self.content:
            case str():
                return self.content
            case Completion(prompt, text):
                return prompt + text
            case Chat():
                raise error(
                    "not-a-text",
                    f"{self.origin} holds a chat, which is a text only by a tokenizer's template",
                    help="give texts, as tokenizer.apply_chat_template(messages, tokenize=False) "
                    "makes them",
                )


def read_documents(source: DataSource) -> Iterator[Document]:
    """Yield every document with visible text; a source without any is an error."""
    yield from read_files(source, list_files(source))


def read_files(source: DataSource, files: Sequence[Path]) -> Iterator[Document]:
    """Yield the documents of ``files``, which ``list_files(source)`` gave."""
    is_empty = True
    is_stream = source.kind is SourceKind.HUGGING_FACE_STREAM
    for file in map(Path, source.paths) if is_stream else files:
        for document in _read_file(source, file):
            is_empty = False
            yield document
    if is_empty:
        read = f"rows of {source.paths[0]}" if is_stream else f"{len(files)} files"
        raise error(
            "empty-corpus",
            f"the data source '{source.kind}' holds no text: {read} read, "
            "0 documents with a visible character",
            notes=tuple(f"read {file}" for file in files[:3]),
            help="check the paths of the source and that the files are not empty",
        )


def _read_file(source: DataSource, file: Path) -> Iterator[Document]:
    try:
        for document in _READERS[source.kind](file, source):
            if not _is_blank(document.content):
                yield document
    except (OSError, UnicodeDecodeError, pa.ArrowException) as problem:
        raise error(
            "unreadable-data",
            f"{file} cannot be read as {source.kind} data: {problem}",
            help="check that the file is whole, readable, and of this kind",
        ) from problem


def _is_blank(content: Content) -> bool:
    text = content.text if isinstance(content, Completion) else content
    return isinstance(text, str) and (text == "" or text.isspace())


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
            _require_fields(fields, source, origin)
            yield Document(_content(fields, source, origin), file, row, len(raw))


def _read_fasta(file: Path, _source: DataSource) -> Iterator[Document]:
    """Records of W. Pearson's format: a line with ``>``, then lines of letters."""
    with file.open("rb") as lines:
        for row, record in enumerate(_fasta_records(file, lines), start=1):
            letters = "".join(line.strip() for _, line in record[1:])
            yield Document(letters, file, row, sum(size for size, _ in record))


def _fasta_records(file: Path, lines: Iterable[bytes]) -> Iterator[list[tuple[int, str]]]:
    """The lines of each record, with their sizes in bytes."""
    record: list[tuple[int, str]] = []
    for number, raw in enumerate(lines, start=1):
        line = _decode(raw, f"{file}:{number}")
        if line.startswith(">") and record:
            yield record
            record = []
        elif not line.startswith(">") and not record:
            if line.isspace():
                continue
            raise error(
                "bad-fasta",
                f"{file}:{number}: letters without a description: {line.strip()[:EXCERPT_CHARS]}",
                help="begin each record with a line '>NAME'",
            )
        record.append((len(raw), line))
    if record:
        yield record


def _require_fields(fields: Mapping[str, Any], source: DataSource, origin: str) -> None:
    for column in source.columns:
        if column not in fields:
            raise error(
                "missing-field",
                f"{origin}: the object has no field '{column}'; it has "
                f"{', '.join(map(repr, fields)) or 'no fields'}",
                help=_other_column(
                    column, fields, [n for n, v in fields.items() if is_chat(item_keys(v))]
                ),
            )


def _read_stream(name: Path, source: DataSource) -> Iterator[Document]:
    for row, fields in enumerate(streamed_rows(source), start=1):
        origin = f"{name}: row {row}"
        _require_fields(fields, source, origin)
        content = _content(_without_nulls(fields), source, origin)
        size = sum(len(str(fields[column]).encode()) for column in source.columns)
        yield Document(content, name, row, size)


def _other_column(column: str, fields: Iterable[str], chats: Sequence[str]) -> str:
    """What to do where a column is missing, in which a text or chat is expected."""
    if chats:
        return f"set column to the one with the chats, '{chats[0]}'"
    return f"set column to the one with the text or chat; {did_you_mean(column, fields)}"


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
        _check_columns(table.schema_arrow, source, file)
        batches = table.iter_batches(ROWS_AT_ONCE, columns=list(source.columns))
        row_bytes = file.stat().st_size // max(1, table.metadata.num_rows)
        yield from _read_rows(batches, source, file, lambda _: row_bytes)


def _read_arrow(file: Path, source: DataSource) -> Iterator[Document]:
    with pa.memory_map(str(file)) as mapped, pa.ipc.open_stream(mapped) as batches:
        _check_columns(batches.schema, source, file)
        yield from _read_rows(batches, source, file, _mean_row_bytes)


def _mean_row_bytes(batch: Any) -> int:
    return int(batch.nbytes // max(1, batch.num_rows))


def _read_rows(
    batches: Iterable[Any], source: DataSource, file: Path, row_bytes: Callable[[Any], int]
) -> Iterator[Document]:
    row = 0
    for batch in batches:
        for fields in batch.select(list(source.columns)).to_pylist():
            row += 1
            content = _content(_without_nulls(fields), source, f"{file}: row {row}")
            yield Document(content, file, row, row_bytes(batch))


def _without_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A row without the nulls that a table writes where an object in a list has no such key."""
    return {name: _with_own_keys(value) for name, value in fields.items()}


def _with_own_keys(value: Any) -> Any:
    if isinstance(value, list):
        return [_with_own_keys(one) for one in value]
    if isinstance(value, dict):
        return {key: _with_own_keys(one) for key, one in value.items() if one is not None}
    return value


def _check_columns(schema: Any, source: DataSource, file: Path) -> None:
    for column in source.columns:
        if column not in schema.names:
            chats = [field.name for field in schema if is_chat(_item_fields(field.type))]
            raise error(
                "missing-column",
                f"{file} has no column '{column}'; it has {', '.join(map(repr, schema.names))}",
                help=_other_column(column, schema.names, chats),
            )
        kind = schema.field(column).type
        if pa.types.is_dictionary(kind):
            kind = kind.value_type
        is_text = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
        if column == source.tools_column:
            continue
        if not any(test(kind) for test in is_text) and not is_chat(_item_fields(kind)):
            raise error(
                "wrong-column-type",
                f"column '{column}' of {file} holds {kind}, expected string, or a list of messages",
                help="set column to the one with the text or chat"
                + (JOINED if _is_list(kind) else ""),
            )


def _content(fields: Mapping[str, Any], source: DataSource, origin: str) -> Content:
    """What a row says to train on."""
    found = _text_and_prompt(fields, source, origin)
    if not source.tools_column:
        return found
    tools = tools_of(fields[source.tools_column], source.tools_column, origin)
    if not isinstance(found, Chat):
        raise error(
            "tools-without-chat",
            f"{origin}: '{source.column}' holds a text, and only chats have tools",
            help="leave tools_column out, or set column to the one with the chats",
        )
    return replace(found, tools=tools)


def _text_and_prompt(fields: Mapping[str, Any], source: DataSource, origin: str) -> Content:
    found = _text_or_chat(fields[source.column], source.column, origin)
    if not source.prompt_column:
        return found
    prompt = _text_or_chat(fields[source.prompt_column], source.prompt_column, origin)
    if isinstance(prompt, str) and isinstance(found, str):
        return Completion(prompt, found)
    if isinstance(prompt, Chat) and isinstance(found, Chat):
        return Chat(prompt.messages + found.messages, len(prompt.messages))
    raise error(
        "mixed-prompt",
        f"{origin}: '{source.prompt_column}' and '{source.column}' are not both texts or both "
        "chats",
        help="write prompt and completion of a row in the same form",
    )


def _text_or_chat(value: object, column: str, origin: str) -> str | Chat:
    if isinstance(value, list) and is_chat(item_keys(value)):
        return chat_of(value, column, origin)
    return _checked_text(value, column, origin)


def _checked_text(value: object, column: str, origin: str) -> str:
    if not isinstance(value, str):
        found, remedy = _no_text(value)
        raise error(
            "not-a-text",
            f"{origin}: '{column}' holds {found}, expected a text or a chat",
            help=remedy,
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


def _no_text(value: object) -> tuple[str, str]:
    """What stands in the place of a text, and what to do about it."""
    if isinstance(value, list):
        return f"a list of {counted(len(value), 'item')}", f"set column to the text{JOINED}"
    if isinstance(value, dict):
        return f"an object with {', '.join(map(repr, value)) or 'no fields'}", (
            "give the text a field of its own, outside of the object"
        )
    found = "null" if value is None else f"{type(value).__name__} {value!r:.{EXCERPT_CHARS}}"
    return found, "drop such rows or give them a text"


def _is_list(kind: Any) -> bool:
    tests = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    return any(test(kind) for test in tests)


def _item_fields(kind: Any) -> Collection[str]:
    """Keys of the objects in a list, by the type of a column."""
    is_of_objects = _is_list(kind) and pa.types.is_struct(kind.value_type)
    return [field.name for field in kind.value_type] if is_of_objects else ()


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
    SourceKind.FASTA: _read_fasta,
    SourceKind.HUGGING_FACE: _read_arrow,
    SourceKind.HUGGING_FACE_STREAM: _read_stream,
    SourceKind.STANDARD_LIBRARY: _read_python,
}
