"""A page that shows a run: the wafer along its cycles, or the trace and the report of a training.

`opened` makes columns of a run, `server` answers the page with them, `export` writes it as a file;
`openwafer view` is the door to all.
"""
