"""A training step: the one home of its order, for runs, stages and loops of your own."""
