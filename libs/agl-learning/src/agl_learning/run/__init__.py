"""A run on the disk: its folder, its starts, its checkpoints, its journal."""
