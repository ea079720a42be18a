"""``agl migrate``: what to change in a script of agentlightning so that it uses agl itself."""
