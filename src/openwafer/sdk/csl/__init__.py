"""The front end of CSL: from source text to a checked, typed program."""
