"""What a wafer's passes are added up to, and how that is told."""

from openwafer.training.metrics.fabric_report import FabricReport, LayerPass, Outlook

PRODUCT = LayerPass("head", "forward", 1, 1000, 200, 200, 0, 640, 900, 700)
LOCAL = LayerPass("", "relu", 2, 60, 0, 0, 0)


def test_two_passes_are_added_up_and_what_one_has_no_account_of_has_none() -> None:
    twice = PRODUCT.plus(PRODUCT)
    assert (twice.count, twice.cycles, twice.busy_cycles, twice.wait_cycles) == (2, 2000, 1400, 600)
    assert LOCAL.plus(LOCAL).busy_cycles is None


def test_a_table_has_compute_and_wait_only_where_an_account_was_kept() -> None:
    lines = FabricReport(4, 2, "wse3", (PRODUCT, LOCAL)).table().splitlines()
    titles = "layer pass times cycles predicted compute wait stream in out"
    assert lines[0].split() == titles.split()
    assert " ".join(lines[1].split()) == "head forward 1 1,000 900 700 300 200 200 0"
    assert " ".join(lines[2].split()) == "- relu 2 60 - - - 0 0 0"
    assert "wait" not in FabricReport(4, 2, "wse3", (LOCAL,)).table()


def test_an_outlook_is_a_line_for_each_number_of_tokens() -> None:
    outlook = tuple(
        Outlook(rows, 10, name, tokens, 100 * tokens, 500 * tokens)
        for rows, name in ((5, "wse3"), (50, "wse2"))
        for tokens in (4, 8)
    )
    lines = FabricReport(5, 10, "wse3", (PRODUCT,), outlook=outlook).table().splitlines()
    assert lines[-3].split("  ")[0] == "tokens of a PE"
    assert lines[-1].split() == ["8", "800", "(10.0%)", "800", "(1.0%)"]
    part = FabricReport(5, 10, "wse3", (PRODUCT,), outlook=outlook[:1] + outlook[2:])
    assert part.table().splitlines()[-1].split() == ["8", "-", "800", "(1.0%)"]
