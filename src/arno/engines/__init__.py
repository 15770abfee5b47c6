"""Engines, which train the clients. `serial` is the reference: all other engines must agree with it."""

from ..registry import Registry

engines = Registry("engine", "arno.engines")
