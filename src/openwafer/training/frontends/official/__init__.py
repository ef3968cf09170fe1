"""The vendor's public front end on our engine: the graph that it writes, read and planned."""
