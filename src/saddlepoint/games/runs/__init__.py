"""The game on exits as a run: what is asked for, who plays it, what is kept of it, and whether that is so."""
