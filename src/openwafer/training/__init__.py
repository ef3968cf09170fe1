"""Weight-streaming training of PyTorch models."""
