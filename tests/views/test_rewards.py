import pytest

from rollplex.views.rewards import rewards


def test_every_seed_has_points_and_a_line_of_one_colour() -> None:
    points0, line0, points1, line1 = rewards({"seed 0": [0.0, 1.0], "seed 1": [1.0, 1.0]}).data
    assert points0.marker.color == line0.line.color != points1.marker.color == line1.line.color


def test_a_step_without_scores_is_a_gap_and_not_a_zero() -> None:
    points, line = rewards({"seed 0": [1.0, float("nan"), 1.0]}, window=1).data
    assert list(points.y) == [1.0, None, 1.0]
    assert list(line.y) == [1.0, None, 1.0]


def test_the_running_mean_needs_a_window() -> None:
    with pytest.raises(ValueError, match="window is 0"):
        rewards({}, window=0)
