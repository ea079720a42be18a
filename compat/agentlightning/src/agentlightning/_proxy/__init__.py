"""Several processes of the LLM proxy at one address."""
