"""Further attacks for the symptoms of a first round."""
