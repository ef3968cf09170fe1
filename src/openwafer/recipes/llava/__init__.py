"""Questions about images of digits."""
