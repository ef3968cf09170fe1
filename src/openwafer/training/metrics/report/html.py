"""Small pieces of HTML; every text that comes from a run is escaped here."""

import re
from collections.abc import Iterable, Sequence
from html import escape

from openwafer.training.metrics.report.drawing import Color, Figure, Key


def section(title: str, *pieces: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(pieces)}</section>"


def caption(text: str) -> str:
    return f'<p class="caption">{prose(text)}</p>'


def prose(text: str) -> str:
    """Escaped text in which no line ends between a number and its unit."""
    return re.sub(r"(?<=\d) (?=[KMGTP]?i?B\b|[mµ]?s\b|min\b)", "\u00a0", escape(text))


def absent(title: str, reason: str) -> str:
    """The section of something this run has not, with the reason."""
    return section(title, note(reason))


def note(text: str) -> str:
    return f'<p class="note">{escape(text)}</p>'


def figure(drawn: Figure) -> str:
    """Title, caption, legend, and both drawings; the style sheet shows one."""
    words = drawn.words
    return (
        f'<figure id="{drawn.name}"><figcaption><h2>{escape(words.title)}</h2>'
        f"{caption(words.caption)}</figcaption>{legend(words.legend)}"
        f'<div class="wide">{drawn.wide_svg}</div><div class="narrow">{drawn.narrow_svg}</div>'
        "</figure>"
    )


def legend(keys: Iterable[Key]) -> str:
    items = "".join(
        f'<li><i class="{key.mark}" style="--key: {key.color.variable}"></i>'
        f"{escape(key.label)}</li>"
        for key in keys
    )
    return f'<ul class="legend">{items}</ul>' if items else ""


def tiles(facts: Iterable[tuple[str, str, str]]) -> str:
    """Headline numbers: name, number, and what to hold it against."""
    items = "".join(
        f'<div><dt>{escape(name)}</dt><dd class="figure">{escape(number)}</dd>'
        f'<dd class="beside">{escape(beside)}</dd></div>'
        for name, number, beside in facts
    )
    return f'<dl class="tiles">{items}</dl>'


def share_bar(shares: Iterable[tuple[Color, float]]) -> str:
    """A bar of colored shares of one; what is left stays empty."""
    parts = "".join(
        f'<i style="width: {100 * share:.3f}%; --key: {color.variable}"></i>'
        for color, share in shares
    )
    return f'<div class="share" aria-hidden="true">{parts}</div>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], name: str) -> str:
    """A table of cells that are HTML already."""
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table class="{name}"><thead><tr>{titles}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
