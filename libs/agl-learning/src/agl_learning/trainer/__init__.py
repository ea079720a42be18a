"""The training loop, where its experience comes from, and its two kinds."""
