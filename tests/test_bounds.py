"""Numbers that a person gives: what is refused, and in which words."""

import pytest

from rollplex.bounds import AMOUNT, COUNT, EFFICIENCY, FINITE, NUMBER, ONE_OR_MORE, POSITIVE, SHARE, Bounds, expect

BAD: dict[str, tuple[Bounds, list[object]]] = {
    "count": (COUNT, [0, -1, 1.5, float("nan"), float("inf"), "3", None]),
    "number": (NUMBER, [-1, 0.5]),
    "positive": (POSITIVE, [0, -1.0, float("nan"), float("inf")]),
    "amount": (AMOUNT, [-1e-9, float("nan"), float("inf")]),
    "one or more": (ONE_OR_MORE, [0.99, float("nan")]),
    "share": (SHARE, [-0.1, 1.1]),
    "efficiency": (EFFICIENCY, [0, 1.1]),
    "finite": (FINITE, [float("inf"), -float("inf"), float("nan"), "1"]),
}


@pytest.mark.parametrize(("bounds", "value"), [(b, v) for b, values in BAD.values() for v in values])
def test_what_is_outside_is_refused_with_what_to_give(bounds: Bounds, value: object) -> None:
    with pytest.raises(ValueError, match=r"^measuring: length is .*; give a (whole )?number"):
        expect("measuring", {"length": value}, length=bounds)


@pytest.mark.parametrize(
    ("bounds", "value"),
    [(COUNT, 1), (NUMBER, 0), (POSITIVE, 1e-9), (SHARE, 0), (SHARE, 1), (EFFICIENCY, 1), (FINITE, -3)],
)
def test_the_ends_of_what_is_allowed_are_allowed(bounds: Bounds, value: float) -> None:
    expect("measuring", {"length": value}, length=bounds)
