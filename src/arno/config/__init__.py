"""Settings, the registries that hold the factories of each group, and the objects that the settings describe."""
