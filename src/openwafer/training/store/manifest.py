"""The small file that says which bytes of the store file are the committed step.

Its atomic replacement is the commit. The format is described in
docs/formats/openwafer-parameter-store.md.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openwafer.diagnostics import OpenwaferError, error
from openwafer.training.store.catalog import Catalog
from openwafer.training.store.dtype_names import dtype_name, dtype_named
from openwafer.training.store.json_state import Json
from openwafer.training.store.layout import ArrayPlace, ArraySpec, Part, RecordLayout
from openwafer.training.store.part_state import Tier
from openwafer.training.store.slots import Version
from openwafer.training.store.store_file import FILE_NAME, FilePlan, PartKey

FORMAT = "openwafer-parameter-store"
VERSION = 1
MANIFEST_NAME = "manifest.json"


@dataclass(frozen=True)
class Manifest:
    """One committed step: the caller's state, all records, and the version of each kept part.

    A part without a version was never written; its bytes are zero.
    """

    step: int
    state: Mapping[str, Json]
    catalog: Catalog
    versions: Mapping[PartKey, Version]

    def encode(self) -> bytes:
        """The manifest as JSON text in UTF-8."""
        records = [
            {
                "name": layout.name,
                "parts": {part.value: self._encode_part(layout, part) for part in Part},
            }
            for layout in self.catalog.layouts.values()
        ]
        document = {
            "format": FORMAT,
            "version": VERSION,
            "step": self.step,
            "state": self.state,
            "file": {"name": FILE_NAME, "num_bytes": self.catalog.file_plan.num_bytes},
            "records": records,
        }
        return json.dumps(document).encode()

    def _encode_part(self, layout: RecordLayout, part: Part) -> dict[str, Any]:
        key = layout.name, part
        version = self.versions.get(key)
        return {
            "tier": self.catalog.placement[key].value,
            "offsets": self.catalog.file_plan.offsets[key],
            "slot": version.slot if version else None,
            "xxh3_64": version.checksum if version else None,
            "arrays": [
                {
                    "name": place.spec.name,
                    "dtype": dtype_name(place.spec.dtype),
                    "shape": place.spec.shape,
                    "offset_bytes": place.offset_bytes,
                }
                for place in layout.parts[part]
            ],
        }


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a store. Raises `store-never-committed`, `store-manifest-broken`..."""
    path = folder / MANIFEST_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError as cause:
        raise _no_manifest(folder) from cause
    try:
        document = json.loads(data)
        _require_format(path, document)
        return _decode(document)
    except (ValueError, KeyError, TypeError, AttributeError) as cause:
        raise error(
            "store-manifest-broken",
            f"{path} is not a whole manifest: {type(cause).__name__}: {cause}",
            notes=(f"the file has {len(data)} bytes",),
            help="restore the file, or load a checkpoint into a new store",
        ) from cause


def _no_manifest(folder: Path) -> OpenwaferError:
    if (folder / FILE_NAME).exists():
        return error(
            "store-never-committed",
            f"the parameter store {folder} was made but holds no committed step",
            help="make it anew; nothing was promised to be in it",
        )
    return error(
        "store-missing",
        f"there is no parameter store in {folder}: no {MANIFEST_NAME}, no {FILE_NAME}",
        help="give the folder that holds both",
    )


def _require_format(path: Path, document: dict[str, Any]) -> None:
    found = document["format"], document["version"]
    if found != (FORMAT, VERSION):
        raise error(
            "store-format",
            f"{path} is {found[0]!r} version {found[1]!r}; this program reads {FORMAT!r} "
            f"version {VERSION}",
            help="use the program version that wrote the store, and move by a checkpoint",
        )


def _decode(document: dict[str, Any]) -> Manifest:
    layouts, placement, offsets, versions = {}, {}, {}, {}
    for record in document["records"]:
        name = record["name"]
        parts = {}
        for part in Part:
            entry = record["parts"][part.value]
            parts[part] = tuple(_decode_array(array) for array in entry["arrays"])
            placement[name, part] = Tier(entry["tier"])
            offsets[name, part] = tuple(entry["offsets"])
            if entry["slot"] is not None:
                versions[name, part] = Version(entry["slot"], entry["xxh3_64"])
        layouts[name] = RecordLayout(name, parts)
    plan = FilePlan(offsets, document["file"]["num_bytes"])
    return Manifest(
        document["step"], document["state"], Catalog(layouts, placement, plan), versions
    )


def _decode_array(entry: dict[str, Any]) -> ArrayPlace:
    spec = ArraySpec(entry["name"], dtype_named(entry["dtype"]), tuple(entry["shape"]))
    return ArrayPlace(spec, entry["offset_bytes"], spec.num_bytes)
