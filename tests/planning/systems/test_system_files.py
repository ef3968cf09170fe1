"""A system described in YAML: what is read, and how its mistakes are told."""

from pathlib import Path

import pytest

from openwafer.diagnostics import OpenwaferError
from openwafer.figures import Figure, Origin
from openwafer.planning.systems import CS2, find_system, read_system

BOX = """\
format: openwafer-system
version: 1
name: box
peak_flops_per_second: {value: 2e14, origin: measured, source: a product of two matrices}
utilisation: 0.4
memory_bytes: 24GB
memory_bytes_per_second: 1e12
link_bytes_per_second: 25GB
network_bytes_per_second: 1.25e9
power_watts: 350
"""
WAFER = "fabric: {columns: 100, rows: 200, lanes: 4, clock_hertz: 1e9}\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "box.yaml"
    path.write_text(text)
    return path


def test_a_plain_number_is_given_and_a_stated_one_says_its_origin(tmp_path: Path) -> None:
    path = written(tmp_path, BOX)
    box = read_system(path)
    assert box.memory == Figure("memory", 24e9, "B", Origin.GIVEN, str(path))
    assert box.peak == Figure("peak", 2e14, "FLOP/s", Origin.MEASURED, "a product of two matrices")


def test_what_a_file_leaves_out_is_absent_and_not_guessed(tmp_path: Path) -> None:
    box = find_system(str(written(tmp_path, BOX)))
    assert (box.store, box.store_rate, box.max_systems, box.fabric) == (None,) * 4
    assert box.title == "box"
    assert box.hop.origin is Origin.INFERRED


def test_a_fabric_has_the_published_cycles_unless_a_file_has_others(tmp_path: Path) -> None:
    fabric = read_system(written(tmp_path, BOX + WAFER)).fabric
    assert fabric is not None
    assert CS2.fabric is not None
    assert fabric.sum_cycles == CS2.fabric.sum_cycles
    assert (fabric.columns.value, fabric.rows.value) == (100, 200)


def test_a_server_has_the_memory_that_its_systems_share(tmp_path: Path) -> None:
    server = "server: {systems: 4, peer_bytes_per_second: 50GB, host_memory_bytes: 1TB, "
    box = read_system(written(tmp_path, BOX + server + "host_bytes_per_second: 2e11}\n"))
    assert (box.store_bytes(1), box.store_bytes_per_second(6)) == (250e9, 3e11)
    assert (box.peer_rate(4), box.peer_rate(5)) == (50e9, 1.25e9)
    assert "host_memory" in [figure.name for figure in box.figures]


@pytest.mark.parametrize(
    ("line", "mistake"),
    [
        ("memory_byte: 24GB", r"no key 'memory_byte' here(.|\n)*did you mean 'memory_bytes'"),
        ("power_watts: much", r"expected a number or a mapping, found the text 'much'"),
        ("power_watts: -5", r"power_watts: -5 is not above 0 and finite"),
        ("power_watts: .inf", r"power_watts: inf is not above 0 and finite"),
        ("utilisation: 40", r"utilisation: 40 is not above 0 and 1 or less"),
        ("version: 2", r"version: 2; this program reads openwafer-system 1"),
        ("format: openwafer-points", r"no such choice: the text 'openwafer-points'"),
        ("store_bytes: 1TB", r"a parameter store has both a size and a rate"),
        ("server: {systems: 8}", r"missing here: peer_bytes_per_second"),
        ("power_watts: {value: 5, origin: measured}", r"has to say where it is from"),
        ("power_watts: {value: 5, origin: guessed}", r"known here: measured, simulated, published"),
    ],
)
def test_a_mistake_is_told_with_its_line(tmp_path: Path, line: str, mistake: str) -> None:
    key = line.partition(":")[0]
    others = [old for old in BOX.splitlines() if not old.startswith(f"{key}:")]
    path = written(tmp_path, "\n".join([*others, line]))
    with pytest.raises(OpenwaferError, match=mistake) as caught:
        read_system(path)
    assert f"box.yaml:{len(others) + 1}:" in str(caught.value)


def test_forwards_again_are_in_what_the_cores_did(tmp_path: Path) -> None:
    box = read_system(written(tmp_path, BOX + "forwards_again: 1\n"))
    assert box.busy_share == pytest.approx(0.4 * 4 / 3)


def test_more_than_the_peak_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, BOX.replace("0.4", "0.9") + "forwards_again: 1\n")
    with pytest.raises(OpenwaferError, match=r"system-too-busy(.|\n)*0\.9 is 1\.2 of the peak"):
        read_system(path)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    text = "\n".join(line for line in BOX.splitlines() if not line.startswith("power"))
    with pytest.raises(OpenwaferError, match="missing here: power_watts"):
        read_system(written(tmp_path, text))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(OpenwaferError, match=r"config-file.*cannot read"):
        find_system(str(tmp_path / "none.yaml"))
