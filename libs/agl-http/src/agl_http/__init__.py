"""An HTTP server that is safe to run: what it refuses, its limits, and layers around an app."""
