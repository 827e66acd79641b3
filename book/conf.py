"""The configuration of Sphinx for the book (``make book``).

The source folder is the root of the repository, so the links of its pages lead to the same files. No page needs
a network. Source: https://www.sphinx-doc.org/en/master/usage/configuration.html.
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

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "reading"]
root_doc = "book/index"
include_patterns = ["*.md", "book/*.md", "book/reference/**", "notebooks/[0-9]*.ipynb"]
include_patterns += ["notebooks/further/[0-9]*.ipynb", "exercises/[0-9]*.ipynb", "exercises/capstone.ipynb"]
exclude_patterns = [".*", "artifacts", "build", "runs"]
templates_path = [str(Path(__file__).parent / "_templates")]

# Notebooks come with their outputs.
nb_execution_mode = "off"
nb_merge_streams = True
nb_ipywidgets_js = {}
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
# An annotation in quotes is ambiguous if two classes have the same name. It then leads to the first of them.
# The job script of the capstone stands in a cell of Python, which cannot be highlighted.
suppress_warnings = ["ref.python", "misc.highlighting_failure"]

# The reference has the order of the files.
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True, "undoc-members": True}
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False  # a colon in the section Returns ends no type
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 90
add_module_names = False
# The names of other packages have no page here. A name of this package without a page is an error.
nitpick_ignore_regex = [
    (r"py:(class|obj|data)", r"(?!dltutorial\b)\w+\..*|Tensor|Axes|Figure|t\.Any|.*\.(Key|Network)")
]
# The objects of a page are listed in its text. In the navigation of every page they would treble the time of a build.
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
# The search would fetch each page for its excerpt, which a browser forbids for files on a disk.
html_show_search_summary = False
html_copy_source = False
html_theme_options = {
    "show_navbar_depth": 1,
    "max_navbar_depth": 2,
    "show_toc_level": 2,
    "use_download_button": False,
    "home_page_in_toc": True,
    "navbar_persistent": [],
}
