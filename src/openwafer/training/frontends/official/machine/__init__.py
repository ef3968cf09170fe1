"""Our engine in the place of the vendor's machine: their process asks, ours answers."""
