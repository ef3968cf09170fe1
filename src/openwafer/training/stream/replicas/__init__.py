"""One model on several ranks: weights go out to all of them, one sum of gradients comes back."""
