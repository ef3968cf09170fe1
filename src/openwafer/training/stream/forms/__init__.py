"""How a weight is stored, seen by its layer's code, and differentiated."""
