"""The simulator reaches its machine through the machine's contract and no other way."""

import ast
from pathlib import Path

from openwafer.sdk.fabric import simulator
from openwafer.sdk.fabric.machine import Machine

TREE = ast.parse(Path(simulator.__file__).read_text(encoding="utf-8"))
INSIDE = {"compiled", "engine", "load", "rows", "state", "variables", "words"}


def test_the_simulator_uses_all_of_the_contract_and_nothing_else() -> None:
    attributes = [node for node in ast.walk(TREE) if isinstance(node, ast.Attribute)]
    used = {node.attr for node in attributes if ast.unparse(node.value) == "self._machine"}
    assert used == {name for name in vars(Machine) if not name.startswith("_")}


def test_the_simulator_knows_no_layout_of_the_state() -> None:
    froms = [node for node in ast.walk(TREE) if isinstance(node, ast.ImportFrom)]
    modules = {(node.module or "").rpartition(".")[2] for node in froms}
    names = {name.name for node in froms for name in node.names}
    assert (modules | names) & INSIDE == set()
