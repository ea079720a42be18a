"""A run: its folder, its checkpoints, and what it has collected and trained so far."""
