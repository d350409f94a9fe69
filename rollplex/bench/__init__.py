"""Benches: what each claim about speed is measured with. Every figure is a ratio within one run."""
