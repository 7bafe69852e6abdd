"""A game on exits as a page, and for other programs."""
