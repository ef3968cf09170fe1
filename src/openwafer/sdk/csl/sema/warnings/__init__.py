"""What is allowed, and hardly meant: known once all of the code was analysed."""
