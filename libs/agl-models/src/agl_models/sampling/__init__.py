"""A model's server whose sampler goes token by token: batches, streams, calls of tools, forms."""
