"""Credit rules: which call gets how much of which reward. One module per rule."""
