"""JSON files: every mistake is told with its file and key, and no name leads out of a folder."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.json_files import Count, JsonMistake, SealedFormat, convert, decode, path_named


class Color(StrEnum):
    RED = "red"


@dataclass(frozen=True)
class Leaf:
    size: Count
    color: Color = Color.RED


@dataclass(frozen=True)
class Tree:
    leaves: tuple[Leaf, ...]
    height: float | None


FORMAT = SealedFormat("tree", 3, Tree, "tree-broken", "plant anew", "tree-version", "ask around")
TREE = Tree((Leaf(1), Leaf(2)), 2.5)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"leaves": [{"size": 1}], "height": "x"}', "height: expected a number .*, found str 'x'"),
        ('{"leaves": [{"size": -1}], "height": 1}', r"leaves\[0\]\.size: .* >= 0, found int -1"),
        ('{"leaves": [{"size": true}]}', r"leaves\[0\]\.size: expected int, found bool True"),
        ('{"leaves": [{"size": null}]}', r"leaves\[0\]\.size: expected int, found null"),
        ('{"leaves": [{}], "height": 1}', r"leaves\[0\]: missing key 'size'"),
        ('{"leaves": [{"size": 1, "color": "blue"}]}', "color: invalid enum value 'blue'"),
        ('{"leaves": {}}', "leaves: expected a list, found dict {}"),
        ("[]", r"expected an object, found list \[\]"),
        ('{"leaves"', "not JSON: Input data was truncated"),
        ("NaN", "not JSON: JSON is malformed"),
        ("[" * 100_000, "not JSON: maximum recursion depth"),
    ],
)
def test_a_mistake_is_told_with_its_key(text: str, told: str) -> None:
    kind = object if text.startswith("[[") else Tree
    with pytest.raises(JsonMistake, match=told):
        decode(kind, text)


def test_bytes_that_are_no_text_are_a_mistake() -> None:
    with pytest.raises(JsonMistake, match="not JSON: 'utf-8' codec can't decode byte 0xff"):
        decode(str, b'"\xff"')


def test_values_of_another_file_are_checked_alike() -> None:
    with pytest.raises(JsonMistake, match="missing key 'leaves'"):
        convert(Tree, {})


def test_a_sealed_file_gives_back_what_it_was_given() -> None:
    assert FORMAT.decode(Path("t.json"), FORMAT.encode(TREE)) == TREE


def test_no_byte_of_sealed_content_changes_unseen() -> None:
    data = FORMAT.encode(TREE)
    for place in range(data.index(b"leaves"), data.rindex(b"}")):
        changed = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        with pytest.raises(OpenwaferError, match=r"tree-broken.* t\.json is damaged: "):
            FORMAT.decode(Path("t.json"), changed)


def test_another_version_is_told_with_both() -> None:
    data = FORMAT.encode(TREE).replace(b'"version":3', b'"version":2')
    with pytest.raises(
        OpenwaferError, match=r"t\.json is 'tree' version 2; this program reads 'tree' version 3"
    ):
        FORMAT.decode(Path("t.json"), data)


@pytest.mark.parametrize("name", ["/etc/passwd", "../a", "b/../../a", "..", "", "link", "link/a"])
def test_a_name_that_leads_out_of_its_folder_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "link").symlink_to(tmp_path)
    with pytest.raises(OpenwaferError, match=f"index names the file '{name}', which does not lie"):
        path_named(name, folder / "index")


def test_a_name_beside_or_below_is_taken(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "a")
    for name in ("a", "b/a", "link"):
        assert path_named(name, tmp_path / "index") == tmp_path / name
