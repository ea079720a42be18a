"""Stores that commands open, and their rollouts in pages."""
