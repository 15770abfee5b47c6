"""Pictures: panels as data, and matplotlib figures for files and notebooks."""
