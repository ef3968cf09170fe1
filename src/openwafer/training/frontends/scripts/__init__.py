"""What the styles of the vendor's scripts share: a program, its optimizers, closures and names."""
