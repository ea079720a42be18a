"""The verbs that this plugin adds to ``agl``, one file each; see ``[project.entry-points]``."""
