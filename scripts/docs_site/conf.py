"""Options of Sphinx for the docs site."""

project = "deepweather"
author = "the authors of deepweather"
project_copyright = ""
root_doc = "index"
extensions = ["myst_parser", "sphinx_copybutton"]
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]
html_theme = "furo"
html_title = "deepweather"
html_static_path = ["static"]
html_css_files = ["wrapping.css"]
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
# A name of our own packages that does not exist is an error; names of other projects are plain text.
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!(data_pipeline|models|training|evaluation|deepweather)\.).*")]
python_use_unqualified_type_names = True
add_module_names = False
copybutton_exclude = ".linenos, .gp, .go"
# Entries of classes and methods in every page's navigation take more build time than everything else.
toc_object_entries = False
# Names of `import deepweather` have two entries: one there, and one in the module that defines them.
suppress_warnings = ["ref.python"]
# Quotes and dashes of commands and options stay as they are typed.
smartquotes = False
