"""Settings, the registries that name their values, and the objects that they describe."""
