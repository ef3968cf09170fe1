"""Rows of a data set that the `datasets` library streams, of which no file has to be here."""

from collections.abc import Iterator, Mapping
from importlib import import_module
from itertools import islice
from typing import Any

from openwafer.diagnostics import error
from openwafer.training.data.sources import DataSource


def streamed_rows(source: DataSource) -> Iterator[Mapping[str, Any]]:
    """Yield the first rows of the data set that a source names, in its own order.

    Args:
        source: of the kind ``hugging-face-stream``.

    Raises:
        OpenwaferError: ``datasets-not-installed``, ``cannot-stream`` for what the library refuses.
    """
    [name] = source.paths
    try:
        library = import_module("datasets")
    except ImportError as missing:
        raise error(
            "datasets-not-installed",
            f"'{name}' is to be streamed, and datasets is not installed: {missing}",
            help="install it: pip install datasets; or save the data set with save_to_disk where "
            "it is installed, and read it as kind: hugging-face",
        ) from missing
    try:
        rows = library.load_dataset(name, source.subset or None, split=source.split, streaming=True)
        yield from islice(rows, source.max_documents)
    # Files that are cut off, servers, and formats have errors of their own, with no base in common.
    except Exception as problem:
        raise error(
            "cannot-stream",
            f"datasets cannot stream '{name}', its subset '{source.subset}', its split "
            f"'{source.split}': {type(problem).__name__}: {problem}",
            help="check the name, subset and split, and the connection; what was read before is "
            "read again",
        ) from problem
