"""Whose bytes: how engines lay parameters out, and which parameters two engines can hold as one copy."""
