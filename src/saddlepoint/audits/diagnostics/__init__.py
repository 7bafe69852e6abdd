"""Diagnostics of an evaluation, and the symptoms and checklist items that follow from them."""
