"""What each address shows."""
