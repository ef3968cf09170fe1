"""Products with sparse weights that skip zeros, as vector code on any number of threads."""
