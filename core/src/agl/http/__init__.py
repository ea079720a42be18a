"""The store over HTTP, both sides: ``client`` asks, ``server`` answers; ``calls`` says where."""
