"""What torch's dispatch modes of this package have in common."""


class Unguarded:
    """A dispatch mode under which nothing is compiled; to be named before torch's own class.

    Torch would wrap each operator in a guard of its compiler, at twice the cost of counting bytes,
    and import that compiler for it: 80 MB and seconds.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
