"""A schedule walked by modelled systems, event by event, beside which formulas can be judged."""
