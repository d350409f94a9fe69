"""What each piece of a step costs: sizes of models, sizes of work, and three ways to turn them into seconds."""
