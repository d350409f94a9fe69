"""Tasks: real data, questions with checkable answers, in the form of rows that TRL reads."""

from rollplex.tasks.clips import Clips
from rollplex.tasks.digits import Digits
from rollplex.tasks.foreign import from_easyr1, from_verl
from rollplex.tasks.rows import Rows

__all__ = ["Clips", "Digits", "Rows", "from_easyr1", "from_verl"]
