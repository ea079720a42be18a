"""Sphinx' settings; ``docs/site.py`` builds the site."""

project = "agl"
author = "The authors of agl"
html_title = "agl"
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_external_toc",
    "sphinx_llms_txt",
]
source_suffix = {".md": "markdown"}
external_toc_path = "docs/toc.yml"
myst_heading_anchors = 4
html_theme = "shibuya"
html_theme_options = {"accent_color": "blue"}
html_static_path = ["_static"]
html_js_files = ["mermaid.min.js", "draw.js"]
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
llms_txt_title = "agl"
llms_txt_summary = "Train any agent with any algorithm, through one store."


def setup(app):
    """Diagrams are text here; ``draw.js`` draws them in the browser."""
    from pygments.lexers.special import TextLexer

    app.add_lexer("mermaid", TextLexer)
