"""Pages by the templates beside this file, which escape every text that they are given."""

import re

from jinja2 import Environment, PackageLoader, StrictUndefined

from openwafer.training.metrics.units import format_bytes, format_count


def render(template: str, **values: object) -> str:
    """The text of a template with these values."""
    return _TEMPLATES.get_template(template).render(values)


def _prose(text: str) -> str:
    """Text in which no line ends between a number and its unit."""
    return re.sub(r"(?<=\d) (?=[KMGTP]?i?B\b|[mµ]?s\b|min\b)", "\u00a0", text)


_TEMPLATES = Environment(
    loader=PackageLoader("openwafer.training.metrics.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters.update(prose=_prose, bytes=format_bytes, count=format_count)
