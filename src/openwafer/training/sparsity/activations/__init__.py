"""Linear maps whose input may be mostly zeros, such as what a ReLU leaves."""
