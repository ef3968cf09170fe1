"""A word that names a program by all that it is."""

import hashlib
from dataclasses import fields

import numpy as np

from openwafer import json_files
from openwafer.sdk.program.program import Program


def digest_of(program: Program) -> str:
    """SHA-256, in hexadecimal, of a program's fields; the same in every process."""
    values = {field.name: getattr(program, field.name) for field in fields(program)}
    arrays = {name: values.pop(name) for name in list(values) if _is_array(values[name])}
    found = hashlib.sha256(json_files.encode(values))
    for name, array in arrays.items():
        found.update(f"{name} {array.dtype.str} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray)
