"""The APIs that agents speak, as chat completions have them: conversations and tools of requests.

A request that is to be answered is refused where something in it cannot be translated; one that was
recorded is read as far as it can be.
"""
