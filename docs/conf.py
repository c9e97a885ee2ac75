"""Configuration of the site: `make docs` builds it with warnings as errors."""

from __future__ import annotations

import gc
import logging
import sys
from functools import cache
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "src"), str(HERE)]
import build_demo  # noqa: E402
import generated  # noqa: E402
from joblib import register_parallel_backend  # noqa: E402
from joblib.parallel import MultiprocessingBackend  # noqa: E402
from sphinx.application import Sphinx  # noqa: E402
from sphinx.ext.napoleon import Config, NumpyDocstring  # noqa: E402
from sphinx.search.en import SearchEnglish  # noqa: E402

import caveat  # noqa: E402

project = "caveat"
copyright = "the caveat authors"
version = release = caveat.__version__
language = "en"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_gallery.gen_gallery"]
exclude_patterns = [
    "demo",
    "gallery/*.ipynb",
    "gallery/*.py",
    "gallery/sg_execution_times.rst",
    "**/GALLERY_HEADER.rst",
]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
myst_links_external_new_tab = False
suppress_warnings = ["misc.highlighting_failure", "config.cache"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
default_role = "code"

html_theme = "furo"
html_title = f"caveat {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_js_files = ["access.js"]
html_copy_source = False
html_show_sphinx = False

sphinx_gallery_conf = {
    "examples_dirs": str(HERE.parent / "examples" / "gallery"),
    "gallery_dirs": "gallery",
    "filename_pattern": "/",
    "image_scrapers": (),
    "reset_modules": (generated.quiet,),
    "remove_config_comments": True,
    "show_memory": False,
    "download_all_examples": False,
    "plot_gallery": True,
    "parallel": True,
    "show_signature": False,
    "write_computation_times": False,
}


def skipped(app: object, what: str, name: str, found: object, skip: bool, options: object) -> bool | None:
    """Leave out what scikit-learn adds to estimators, whose descriptions refer to pages of its own site."""
    return True if name.endswith(("_request", "metadata_routing")) else None


def sections(app: Sphinx, what: str, name: str, found: object, options: object, lines: list[str]) -> None:
    """Read NumPy's sections, but not in attributes, where Napoleon takes what is before a colon for a type."""
    if what not in ("attribute", "property", "data"):
        lines[:] = NumpyDocstring(lines, Config(napoleon_use_rtype=False), app, what, name, found, options).lines()


def is_outside(page: str) -> bool:
    """Return whether a page is not in the sidebar because another page lists it."""
    return page.startswith(("results/tables/", "reference/api/")) and page != "reference/api/index"


def outside_navigation(app: Sphinx, document: object) -> None:
    """Keep 110 pages that others list out of the sidebar, which takes most of the build, and tables out of search."""
    page = app.env.docname
    if is_outside(page):
        app.env.metadata[page]["orphan"] = True
    if page.startswith("results/tables/"):
        app.env.metadata[page]["nosearch"] = True


SIDEBARS: dict[str, str] = {}
"""The sidebar of the pages outside the navigation, by folder."""


def same_sidebar(app: Sphinx, page: str, template: str, context: dict[str, Any], document: object) -> None:
    """Make the sidebar of pages that are not in it once per folder: it has the same links, and marks no page."""
    if is_outside(page):
        folder, toctree = page.rpartition("/")[0], context["toctree"]
        context["toctree"] = lambda **options: SIDEBARS.get(folder) or SIDEBARS.setdefault(folder, toctree(**options))


class English(SearchEnglish):
    """The stemmer of the search index, which computes the stem of a word once."""

    stem = cache(SearchEnglish.stem)


def next_to_pages(app: Sphinx, error: Exception | None) -> None:
    """Write the list of pages that tools read, and wait for the demo; the page shows the reason if it is missing."""
    DEMO[0].join()
    if error is not None:
        return
    (Path(app.outdir) / "llms.txt").write_text(generated.llms(HERE))
    if DEMO[0].exitcode:
        print("the demo of the landing page was not built", file=sys.stderr)


DEMO: list[BaseProcess] = []
"""The process that builds the demo, beside the pages."""


def setup(app: Sphinx) -> None:
    """Write the generated pages before Sphinx looks for sources."""
    generated.write(HERE / "reference")
    logging.getLogger("caveat").setLevel(logging.WARNING)  # a style that furo imports shows all messages of all loggers
    # Processes that are forked from here on need not import torch. Sphinx makes many objects that refer to each other,
    # and little garbage, so the collector of garbage runs rarely.
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
    register_parallel_backend("loky", MultiprocessingBackend)  # the gallery names this one, which starts anew
    DEMO.append(get_context("fork").Process(target=build_demo.main, args=(Path(app.outdir) / "_static" / "demo",)))
    DEMO[0].start()
    app.add_search_language(English)
    app.connect("html-page-context", same_sidebar, priority=400)  # before furo, which makes the sidebar
    app.connect("build-finished", next_to_pages)
    app.connect("autodoc-skip-member", skipped)
    app.connect("autodoc-process-docstring", sections)
    app.connect("doctree-read", outside_navigation)
