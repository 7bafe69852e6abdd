"""Exit games as runs: specification, cached play, record, warnings and verification."""
