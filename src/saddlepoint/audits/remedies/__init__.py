"""Further attacks for the symptoms of the first round."""
