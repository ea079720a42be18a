"""Model servers as child processes: vLLM, SGLang, and how each surely ends."""
