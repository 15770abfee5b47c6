"""Pictures, tables and listings."""
