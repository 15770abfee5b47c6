"""How outputs and gradients of a network are computed."""
