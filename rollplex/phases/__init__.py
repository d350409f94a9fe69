"""The phases of a training step, in the order of its data path."""
