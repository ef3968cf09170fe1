"""Walks the plan of a step: layers, activations, micro-batches, gradients."""
