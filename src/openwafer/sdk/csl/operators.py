"""The operators of CSL and how tightly they bind."""

from enum import StrEnum


class UnaryOperator(StrEnum):
    """Prefix operators on values; `&` is `AddressOf`."""

    NEGATE = "-"
    NOT = "!"
    BIT_NOT = "~"


class BinaryOperator(StrEnum):
    """Infix operators; the arithmetic and bit ones also make compound assignments."""

    MULTIPLY = "*"
    DIVIDE = "/"
    REMAINDER = "%"
    ADD = "+"
    SUBTRACT = "-"
    SHIFT_LEFT = "<<"
    SHIFT_RIGHT = ">>"
    BIT_AND = "&"
    BIT_XOR = "^"
    BIT_OR = "|"
    EQUAL = "=="
    NOT_EQUAL = "!="
    LESS = "<"
    LESS_EQUAL = "<="
    GREATER = ">"
    GREATER_EQUAL = ">="
    AND = "and"
    OR = "or"


# As in Zig: the bit operators bind tighter than comparisons, so `a & b == c` is `(a & b) == c`.
PRECEDENCE = {
    operator: level
    for level, operators in enumerate(
        (
            (BinaryOperator.OR,),
            (BinaryOperator.AND,),
            (
                BinaryOperator.EQUAL,
                BinaryOperator.NOT_EQUAL,
                BinaryOperator.LESS,
                BinaryOperator.LESS_EQUAL,
                BinaryOperator.GREATER,
                BinaryOperator.GREATER_EQUAL,
            ),
            (BinaryOperator.BIT_AND, BinaryOperator.BIT_XOR, BinaryOperator.BIT_OR),
            (BinaryOperator.SHIFT_LEFT, BinaryOperator.SHIFT_RIGHT),
            (BinaryOperator.ADD, BinaryOperator.SUBTRACT),
            (BinaryOperator.MULTIPLY, BinaryOperator.DIVIDE, BinaryOperator.REMAINDER),
        ),
        start=1,
    )
    for operator in operators
}

# The operators that have a compound assignment, such as `+=`.
COMPOUND = frozenset(
    o for o, level in PRECEDENCE.items() if level > PRECEDENCE[BinaryOperator.EQUAL]
)
