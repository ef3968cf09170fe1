"""Configs as YAML text that reads back as the same value."""

import dataclasses
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import lru_cache
from pathlib import Path
from typing import get_args, get_type_hints

import yaml

from openwafer.config.byte_size import Bytes, exact_bytes
from openwafer.config.document import resolve_plain


def to_yaml(value: object) -> str:
    """Write a config, a dataclass instance, with every field and byte sizes with their unit."""
    tree = _to_tree(value, type(value))
    return yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def to_flow(value: object) -> str:
    """Write a value, or a config, on one line, as it may stand behind ``KEY=``."""
    tree = _to_tree(value, type(value))
    text = yaml.dump(
        tree,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=float("inf"),
        default_flow_style=True,
    )
    return text.removesuffix("...\n").rstrip("\n")


_remembered_flow = lru_cache(maxsize=1024, typed=True)(to_flow)


def settings_of(value: object) -> dict[str, str]:
    """The settings of a config by their keys, such as ``batch.size``, each as its text."""
    return dict(_settings("", _to_tree(value, type(value))))


def _settings(key: str, tree: object) -> Iterator[tuple[str, str]]:
    if isinstance(tree, dict) and tree:
        for name, item in tree.items():
            yield from _settings(f"{key}.{name}" if key else str(name), item)
    else:
        # Zeros of both signs are equal, and are written otherwise: floats are not remembered.
        is_remembered = isinstance(tree, str | int | None)
        yield key, _remembered_flow(tree) if is_remembered else to_flow(tree)


def _to_tree(value: object, kind: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        hints = get_type_hints(type(value), include_extras=True)
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        return {name: _to_tree(getattr(value, name), hints[name]) for name in fields}
    if isinstance(value, Mapping):
        return {key: _to_tree(item, object) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_to_tree(item, object) for item in value]
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if type(value) is int and Bytes in (kind, *get_args(kind)):
        return exact_bytes(value)
    return value


class _Dumper(yaml.SafeDumper):
    """Quotes the texts that would read back as numbers by YAML 1.2, and repeats equal parts."""

    def ignore_aliases(self, data: object) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = None if isinstance(resolve_plain(text), str) else "'"
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _Dumper.represent_text)
