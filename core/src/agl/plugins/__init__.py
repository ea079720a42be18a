"""Components by name, their options, and hooks.

``registry`` finds entry points, ``schema`` reads constructors, ``build`` makes components of what
was written, ``hookspecs`` says what a plugin can watch, ``hooks`` calls it.
"""
