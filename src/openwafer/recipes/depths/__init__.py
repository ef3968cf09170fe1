"""A mixture of depths: layers that take a share of the tokens."""
