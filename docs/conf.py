"""Settings of the site that Sphinx makes of the pages in this folder."""

import os
import sys
from pathlib import Path

from mdgraph import __version__

# A backend that is set keeps pictures out of the notebook.
os.environ.pop("MPLBACKEND", None)
sys.path.insert(0, str(Path(__file__).parent))

project = "mdgraph"
author = "The mdgraph developers"
copyright = author  # noqa: A001 - Sphinx reads this name
release = version = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "generated_pages",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]
suppress_warnings = ["config.cache"]

# Pages hold plain Markdown, which reads as well in a clone.
myst_heading_anchors = 4
myst_enable_extensions = ["deflist", "attrs_inline"]
smartquotes = False
highlight_language = "bash"
copybutton_exclude = ".linenos, .gp, .go"

# The notebook runs whenever the site is built; an error in it is an error of the build.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 120

# Docstrings have Google's sections, and code in single backticks.
default_role = "py:obj"
autodoc_class_signature = "mixed"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_mock_imports = ["ovito", "tblite", "wandb"]
maximum_signature_line_length = 88
napoleon_attr_annotations = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"mdgraph {version}"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"top_of_page_buttons": []}

# `python -m sphinx -b linkcheck docs LINKS` asks every address outside of the site.
linkcheck_timeout = 20
linkcheck_workers = 4
linkcheck_ignore = [r"https://doi\.org/"]  # publishers refuse programs; a test checks their form
