"""What does an installed kernel really do? Inputs whose results give it away, one question a file in `question/`."""
