"""What is known of how a run went, prompt optimisation included."""
