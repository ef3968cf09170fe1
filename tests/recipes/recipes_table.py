"""The table of recipes in the guide, docs/guide/recipes-table.inc, and the pages behind it."""

from pathlib import Path

from openwafer.recipes import all_recipes

TABLE = Path(__file__).parents[2] / "docs/guide/recipes-table.inc"


def table() -> str:
    """Its text; `scripts/recipes_page.py` writes it."""
    rows = ["| recipe | what | data | loss | time | memory |", "|---|---|---|---|---|---|"]
    for recipe in all_recipes():
        known, figure = recipe.known, recipe.known.figure
        rows.append(
            f"| [{recipe.name}](#{recipe.name}) | {known.title} | {known.data} "
            f"| {figure.loss:.2f} +- {figure.spread:.2f} | {known.seconds:.0f} s "
            f"| {known.memory / 1e6:.0f} MB |"
        )
    pages = [
        f"```{{include}} ../../src/openwafer/recipes/{recipe.name}/README.md\n"
        ":heading-offset: 1\n```"
        for recipe in all_recipes()
    ]
    return "\n".join(rows) + "\n\n" + "\n\n".join(pages) + "\n"
