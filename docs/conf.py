"""How Sphinx builds the documentation: `make docs`, with every warning an error."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

import spmdx  # noqa: E402

project = "spmdx"
author = "The spmdx authors"
version = release = spmdx.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_parser"]
source_suffix = {".rst": "restructuredtext", ".md": "markdown"}
exclude_patterns = ["_build", "_generated"]
suppress_warnings = ["myst.xref_missing"]  # Markdown pages link to files of the repository
nitpicky = False

html_theme = "alabaster"
html_theme_options = {"description": "Arrays for many processes that read like NumPy for one", "page_width": "1100px"}
html_show_sourcelink = False
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
highlight_language = "python"


def generate(app: Any) -> None:
    """Write the tables that are made from the library itself."""
    import scaling
    import tables

    folder = HERE / "_generated"
    folder.mkdir(exist_ok=True)
    for make in (tables.operations, tables.reference, tables.batching, scaling.scaling):
        path, text = folder / f"{make.__name__}.txt", make()
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def keep_colons(app: Any, what: str, name: str, value: Any, options: Any, lines: list[str]) -> None:
    """A property's docstring is a sentence. Napoleon reads its first line as "type: text", so that is made empty: a
    backslash at the end of a line stands for nothing."""
    if what == "property":
        lines.insert(0, "\\")


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("builder-inited", generate)
    app.connect("autodoc-process-docstring", keep_colons, priority=400)  # before napoleon, which has 500
