"""Draw pictures into files with matplotlib."""
