"""What a step of a run is made of, counted apart from any machine."""
