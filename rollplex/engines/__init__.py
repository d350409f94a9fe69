"""Rollout engines: who samples responses, behind one protocol."""
