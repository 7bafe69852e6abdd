"""Diagnostics of attacks and targets, the checklist and symptoms."""
