"""Members of crews for tests; importable by name in another process."""

from __future__ import annotations

import os
import time
from typing import Any


class Echo:
    """Answers with what it was asked, or misbehaves as told."""

    def __init__(self, number: int) -> None:
        self.number = number

    def answer(self, word: str, *arguments: Any) -> Any:
        if word == "process":
            return os.getpid()
        if word == "fail" and self.number == 1:
            raise ValueError("the second one cannot")
        if word == "die" and self.number == 1:
            os._exit(7)
        if word == "sleep" or (word in ("fail", "die") and self.number == 0):
            time.sleep(3600)
        return self.number, word, arguments
