"""The training loop: serve, roll out, weigh, update, again; in place or by version."""
