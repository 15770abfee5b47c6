"""What a comparison shows: an HTML report, figures for a paper, and tables of text."""
