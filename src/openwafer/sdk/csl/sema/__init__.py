"""Semantic analysis: names, types and compile-time evaluation, from syntax trees to IR."""
