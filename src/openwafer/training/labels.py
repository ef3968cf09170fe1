"""What data and losses must agree on about labels."""

from typing import Final

IGNORED_LABEL: Final = -100
"""A label that adds nothing to the loss; torch's own default, which other models know too."""
