"""Records of a run: its file, its journals, and how it goes on after an interruption."""
