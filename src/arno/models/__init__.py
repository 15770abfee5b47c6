"""Networks. Each declares its last linear layer, its feature levels and the unit groups of its parameters' axes."""

from ..registry import Registry

models = Registry("model", "arno.models")
