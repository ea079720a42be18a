"""agl-ui: a web page over a store, rendered on the server and kept live."""
