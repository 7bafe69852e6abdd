"""The HTML report of an exit game and its exports."""
