"""What rooms share: text, JSON, checks, logs, secrets, span attributes, names of packages."""
