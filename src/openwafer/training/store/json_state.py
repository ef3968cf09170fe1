"""Writes the caller's state into commits and checkpoints, as JSON."""

import json
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from openwafer.diagnostics import error

Json: TypeAlias = "bool | int | float | str | Sequence[Json] | Mapping[str, Json] | None"


def json_copy(state: Mapping[str, Json]) -> Mapping[str, Json]:
    """A copy of the state as a file would give it back. Raises `store-state-not-json`."""
    try:
        copy: Mapping[str, Json] = json.loads(json.dumps(state, allow_nan=False))
    except (TypeError, ValueError) as cause:
        raise error(
            "store-state-not-json",
            f"the state of a commit must be JSON: {cause}",
            help="encode tensors and bytes as text, such as base64",
        ) from cause
    return copy
