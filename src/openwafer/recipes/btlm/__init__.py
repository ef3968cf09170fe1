"""BTLM: ALiBi in place of positions, SwiGLU and muP."""
