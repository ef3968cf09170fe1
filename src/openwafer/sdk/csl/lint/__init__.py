"""What is allowed, and hardly meant: looked for once all of the code was analysed."""
