"""Runs that are listed, shown, compared and deleted, and the stores that have them."""
