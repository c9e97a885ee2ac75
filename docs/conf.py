"""Configuration of the site: `make docs` builds it with warnings as errors."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]
import generated  # noqa: E402

import caveat  # noqa: E402

project = "caveat"
copyright = "the caveat authors"
version = release = caveat.__version__
language = "en"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_gallery.gen_gallery"]
exclude_patterns = ["gallery/**/*.ipynb", "gallery/*.ipynb", "gallery/*.py", "**/sg_execution_times.rst", "**/GALLERY_HEADER.rst"]
nitpicky = False

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["misc.highlighting_failure", "config.cache"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
default_role = "code"
napoleon_google_docstring = False

html_theme = "furo"
html_title = f"caveat {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False

sphinx_gallery_conf = {
    "examples_dirs": str(HERE.parent / "examples" / "gallery"),
    "gallery_dirs": "gallery",
    "filename_pattern": "/",
    "image_scrapers": (),
    "reset_modules": (),
    "remove_config_comments": True,
    "show_memory": False,
    "download_all_examples": False,
    "plot_gallery": True,
    "show_signature": False,
    "parallel": 2,
    "min_reported_time": 10_000,
}


def setup(app: object) -> None:
    """Write the generated pages before Sphinx looks for sources."""
    generated.write(HERE / "reference")
