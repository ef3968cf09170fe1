"""muP: settings that were tuned on a small model, scaled to a larger one."""
