"""How Sphinx makes the book: ``make book``. The source folder is the repository's root, so links in its pages lead to
the same places as there. Nothing here or in the pages asks a network.
"""

import sys
from pathlib import Path

import dltutorial
from dltutorial.course.execute import quick_imports

sys.path.insert(0, str(Path(__file__).parent))

quick_imports()  # of nbformat, which myst_nb imports

project = "Deep learning at scale"
author = "The dltutorial developers"
copyright = "the dltutorial developers; text and figures CC-BY-4.0, code Apache-2.0"
version = release = dltutorial.__version__
language = "en"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "reading",
]
root_doc = "book/index"
include_patterns = ["*.md", "book/**", "notebooks/[0-9][0-9]_*.ipynb"]
include_patterns += ["exercises/[0-9][0-9]_*.ipynb", "exercises/capstone.ipynb"]
exclude_patterns = [".*", "artifacts", "build", "dltutorial", "runs", "tests", "slurm", "solutions", "hub", "pages"]
exclude_patterns += ["**/runs", "book/_*", "*.egg-info"]
templates_path = [str(Path(__file__).parent / "_templates")]

# Notebooks come with their outputs.
nb_execution_mode = "off"
nb_merge_streams = True
nb_ipywidgets_js = {}
nb_number_source_lines = False
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
# Of two classes of one name, an annotation in quotes does not say which; it then leads to the first.
# The capstone's job script is written by a cell of Python.
suppress_warnings = ["ref.python", "misc.highlighting_failure"]

# The reference: in the order of the file, types as in the signature, nothing mocked.
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "undoc-members": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
add_module_names = False
# What other packages define has no page here. A name of this package without one is an error.
nitpick_ignore_regex = [
    (r"py:(class|obj|data)", r"(?!dltutorial\b)\w+\..*|Tensor|Axes|Figure|t\.Any|.*\.(Key|Network)")
]
# The list of a page's objects stands in its text; in every page's navigation it would treble the time a book takes.
toc_object_entries = False

html_additional_pages = {"index": "to_book.html"}
html_theme = "sphinx_book_theme"
html_title = "Deep learning at scale"
html_favicon = "_static/mark.svg"
html_static_path = ["_static"]
html_css_files = ["book.css"]
html_js_files = ["book.js"]
html_math_renderer = "mathml"
html_context = {"default_mode": "auto"}
# Excerpts would be fetched page by page, which a browser forbids for files on a disk.
html_show_search_summary = False
html_show_sourcelink = False
html_copy_source = False
html_last_updated_fmt = None
html_theme_options = {
    "show_navbar_depth": 1,
    "max_navbar_depth": 2,
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "home_page_in_toc": True,
    "navbar_persistent": [],
}
