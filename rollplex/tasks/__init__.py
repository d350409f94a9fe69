"""Tasks: real data, questions with checkable answers, in the form of rows that TRL reads."""

from rollplex.tasks.clips import Clips
from rollplex.tasks.digits import Digits

__all__ = ["Clips", "Digits"]
