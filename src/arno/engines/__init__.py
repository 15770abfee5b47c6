"""Where clients train. `serial` is the reference that every other engine must agree with."""

from ..registry import Registry

engines = Registry("engine", "arno.engines")
