"""A calculator as an MCP server on standard input and output, with one tool: ``calculate``.

    python calculator.py

Numbers, ``+ - * / // % **``, brackets and a few functions; nothing else is evaluated. Numbers have
limits, as a model may well ask for ``9**9**9``.
"""

import ast
import math
import operator
from collections.abc import Callable
from typing import Any

MAX_CHARS = 1000
MAX_BITS = 2000
"""Of an integer: about 600 digits."""
MAX_DIGITS = 15
"""To which a number is rounded."""


def _round(value: float, digits: int = 0) -> float:
    # Python would make a number with as many digits as it is asked to cut off.
    if abs(digits) > MAX_DIGITS:
        raise ValueError(f"round takes at most {MAX_DIGITS} digits")
    return round(value, digits)


OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "ceil": math.ceil,
    "floor": math.floor,
    "max": max,
    "min": min,
    "round": _round,
    "sqrt": math.sqrt,
}


def calculate(expression: str) -> str:
    """Calculate an expression, for example ``(3 + 4) * 2.5`` or ``sqrt(2)``.

    Args:
        expression: Numbers, + - * / // % **, brackets, abs, ceil, floor, max, min, round and sqrt.
    """
    if len(expression) > MAX_CHARS:
        raise ValueError(f"the expression is longer than {MAX_CHARS} characters")
    try:
        value = _value(ast.parse(expression.strip(), mode="eval").body)
    except (SyntaxError, ZeroDivisionError, TypeError, ArithmeticError, RecursionError) as error:
        raise ValueError(f"cannot calculate {expression!r}: {error}") from error
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _value(node: ast.AST) -> int | float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return _within_limits(number)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            one, other = _value(left), _value(right)
            if isinstance(op, ast.Pow):
                _refuse_large_power(one, other)
            return _within_limits(OPERATORS[type(op)](one, other))
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
            return OPERATORS[type(op)](_value(operand))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in FUNCTIONS:
            return _within_limits(FUNCTIONS[name](*map(_value, arguments)))
        case _:
            raise ValueError(f"cannot calculate {ast.unparse(node)!r}: {calculate.__doc__}")


def _refuse_large_power(base: float, exponent: float) -> None:
    if abs(base) > 1 and abs(exponent) * math.log2(abs(base)) > MAX_BITS:
        raise ValueError(f"{base}**{exponent} is too large")


def _within_limits(value: Any) -> int | float:
    if isinstance(value, complex):
        raise ValueError("the result is no real number")
    if value.bit_length() > MAX_BITS if isinstance(value, int) else not math.isfinite(value):
        raise ValueError("the number is too large")
    return value


def main() -> None:
    """Serve until standard input is closed."""
    from mcp.server.fastmcp import FastMCP

    server = FastMCP("calculator", log_level="WARNING")
    server.tool()(calculate)
    server.run("stdio")


if __name__ == "__main__":
    main()
