"""What a run leaves on disk: its folder, its records, its checkpoints."""
