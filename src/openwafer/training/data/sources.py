"""Data sources, and the files of each in an order that never changes."""

import glob
import os
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import xxhash

from openwafer.config import InvalidFieldError, convert_fields
from openwafer.diagnostics import OpenwaferError, did_you_mean, error
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
    FASTA = "fasta"
    HUGGING_FACE = "hugging-face"
    HUGGING_FACE_STREAM = "hugging-face-stream"
    STANDARD_LIBRARY = "standard-library"


class Learn(StrEnum):
    """Which tokens of a chat, or of a prompt with its completion, a model learns to predict."""

    ANSWERS = "answers"
    ALL = "all"


_SAVED_OR_STREAMED = (SourceKind.HUGGING_FACE, SourceKind.HUGGING_FACE_STREAM)
_TABLES = (SourceKind.JSONL, SourceKind.PARQUET, *_SAVED_OR_STREAMED)
_OPTIONS: Mapping[str, tuple[object, tuple[SourceKind, ...]]] = {
    "column": ("text", _TABLES),
    "prompt_column": ("", _TABLES),
    "learn": (Learn.ANSWERS, _TABLES),
    "tools_column": ("", _TABLES),
    "split": (_DEFAULT_SPLIT, _SAVED_OR_STREAMED),
    "subset": ("", (SourceKind.HUGGING_FACE_STREAM,)),
    "max_documents": (0, (SourceKind.HUGGING_FACE_STREAM,)),
    "separator": ("", (SourceKind.TEXT,)),
    "include_tests": (False, (SourceKind.STANDARD_LIBRARY,)),
}
_FOLDER_GLOB = {
    SourceKind.TEXT: "*",
    SourceKind.JSONL: "*.jsonl",
    SourceKind.PARQUET: "*.parquet",
    SourceKind.FASTA: "*.fasta",
}


@dataclass(frozen=True)
class DataSource:
    """A set of documents.

    Attributes:
        kind: ``text`` (a file is a document), ``jsonl`` (a line is), ``parquet`` (a row is),
            ``fasta`` (the letters of a record are, without its description),
            ``hugging-face`` (a row of a folder written by ``Dataset.save_to_disk``),
            ``hugging-face-stream`` (a row of what `datasets` streams), or
            ``standard-library`` (the sources of the running Python; a file is a document).
        paths: files, folders and globs, read in this order and sorted inside; ``**`` crosses
            folders. For ``hugging-face``, folders of saved datasets and globs of such; for
            ``hugging-face-stream``, the name of one data set, or its folder; for
            ``standard-library``, globs inside the library, none means all of it.
        column: JSONL field or table column that holds the text, or the chat: a list of messages
            that have a role and a content.
        prompt_column: one that holds what comes before that of ``column``, text or chat as well;
            empty where there is none.
        learn: ``answers``, which are the messages of the assistant and what stands in ``column``
            behind a prompt, or ``all``.
        split: which split of a saved ``DatasetDict``, or of a stream, to read.
        subset: which subset of a streamed data set.
        max_documents: of a stream, whose end may be far, this many rows are read.
        tools_column: one that holds the tools of a row's chat, a list of objects or its JSON; empty
            where there is none.
        separator: for ``text``, cuts each file into documents; empty keeps files whole.
        include_tests: for ``standard-library``, reads its test suites as well.
    """

    kind: SourceKind
    paths: tuple[str, ...] = ()
    column: str = "text"
    split: str = _DEFAULT_SPLIT
    separator: str = ""
    include_tests: bool = False
    # Tokens that were made before these options existed are not made again.
    prompt_column: str = field(default="", repr=False)
    learn: Learn = field(default=Learn.ANSWERS, repr=False)
    tools_column: str = field(default="", repr=False)
    subset: str = field(default="", repr=False)
    max_documents: int = field(default=0, repr=False)

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

        if self.kind is SourceKind.HUGGING_FACE_STREAM:
            self._require_one_stream()

    def _require_one_stream(self) -> None:
        if len(self.paths) != 1:
            raise InvalidFieldError(
                "paths",
                f"a source of kind '{self.kind}' streams one data set, and has {len(self.paths)}",
                help="name one, for example paths: [allenai/c4]; a mix has several sources",
            )
        if self.max_documents < 1:
            raise InvalidFieldError(
                "max_documents",
                f"expected at least 1 for kind '{self.kind}', found {self.max_documents}",
                help="say how many rows are read, for example max_documents: 1000000",
            )

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return tuple(filter(None, (self.column, self.prompt_column, self.tools_column)))


def list_files(source: DataSource) -> tuple[Path, ...]:
    """The files of ``source`` in reading order, each once; raises where a path matches nothing."""
    match source.kind:
        case SourceKind.HUGGING_FACE:
            folders = [folder for path in source.paths for folder in _folders(path)]
            found = [file for folder in folders for file in _saved_dataset(folder, source.split)]
        case SourceKind.STANDARD_LIBRARY:
            found = list(_standard_library(source))
        case SourceKind.HUGGING_FACE_STREAM:
            found = _files_of_stream(Path(source.paths[0]))
        case SourceKind.TEXT | SourceKind.JSONL | SourceKind.PARQUET | SourceKind.FASTA:
            pattern = _FOLDER_GLOB[source.kind]
            found = [file for path in source.paths for file in _matches(path, pattern)]
    return tuple(dict.fromkeys(found))


def fingerprint(source: DataSource, files: Iterable[Path]) -> str:
    """Changes with the settings and with the name, size or time of change of any file."""
    content = repr(source)
    if source.prompt_column or source.learn != Learn.ANSWERS:
        content += f" {source.prompt_column!r} {source.learn}"
    if source.tools_column:
        content += f" tools {source.tools_column!r}"
    if source.kind is SourceKind.HUGGING_FACE_STREAM:
        content += f" {source.subset!r} {source.max_documents}"
    digest = xxhash.xxh3_128(content.encode())
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


def _files_of_stream(folder: Path) -> list[Path]:
    """Those of a folder here, which may change; none of a data set that its hub has."""
    found = (file for file in folder.rglob("*") if not _is_hidden(file, folder))
    return sorted((file for file in found if file.is_file()), key=Path.as_posix)


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
