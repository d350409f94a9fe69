"""Checks of the claims that everything rests on, against transformers' own forward, with negative controls."""

from rollplex.verify.verify import verify

__all__ = ["verify"]
