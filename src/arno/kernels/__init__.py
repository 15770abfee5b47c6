"""How the outputs and the gradient of a network are computed. `choose` is the only entrance.

A kernel is chosen by what a network computes, never by its name or class.
"""
