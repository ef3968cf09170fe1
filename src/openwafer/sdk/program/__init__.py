"""The compiled artifact: all that the compiler and the simulator have in common."""
