"""0.1: its records, and how they come into a store and out of it."""
