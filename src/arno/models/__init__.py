"""Networks. Each network declares its last linear layer, its feature levels, and the units of its parameters."""

from ..registry import Registry

models = Registry("model", "arno.models")
