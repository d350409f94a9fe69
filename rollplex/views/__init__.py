"""Seeing: figures, pages and live boxes made from steps and traces.

Views import what they show and nothing imports views, but for the two methods of `Trace` that open one on demand.
"""
