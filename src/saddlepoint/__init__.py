"""How robust is a dynamic model, really? See README.md."""
