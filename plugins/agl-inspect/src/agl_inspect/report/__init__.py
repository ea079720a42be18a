"""How a run went: for the terminal, as a page, as a curve."""
