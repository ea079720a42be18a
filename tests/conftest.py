"""For all tests."""

import signal

# What a shell without job control runs in the background ignores SIGINT, and so do its children,
# unless a handler is set; tests interrupt them.
signal.signal(signal.SIGINT, signal.default_int_handler)
