"""The APIs that agents speak beside chat completions; see ``agl_gateway.dialect``."""
