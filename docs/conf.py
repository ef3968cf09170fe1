"""Sphinx configuration."""

from pygments.lexers.zig import ZigLexer
from sphinx.application import Sphinx

import openwafer

project = "openwafer"
author = "The openwafer authors"
version = release = openwafer.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx.ext.napoleon",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = "openwafer"


def setup(app: Sphinx) -> None:
    """CSL is colored as Zig, which it is close to."""
    app.add_lexer("csl", ZigLexer)
