"""The Rollplex paper's published numbers as data, and what our model makes of them."""
