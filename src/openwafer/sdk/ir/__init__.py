"""The typed intermediate representation of PE code: contract, verifier, text form, interpreter."""
