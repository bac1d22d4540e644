"""The documentation site: `make docs` builds the repository's Markdown, as it is, with Sphinx.

Its source is the root of the repository, so that links between docs/, README.md and deploy/ lead to
the same here and at a Git host. The tables of docs/README.md are the navigation.
"""

import re
from typing import Any

FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)

project = "kvtier"
author = "the kvtier authors"
extensions = ["myst_parser"]
root_doc = "docs/README"
include_patterns = ["*.md", "docs/*.md", "deploy/local/README.md"]
# Folders are named so that they are not walked through.
exclude_patterns = [".*", "dist", "build-out", "operator", "tests", "charts", "crds", "docs/site"]

# Placeholders such as <kvtier's namespace> are no shell.
suppress_warnings = ["misc.highlighting_failure"]

# Anchors as Git hosts make them of headings, down to the fourth level.
myst_heading_anchors = 4

html_theme = "furo"
html_title = "kvtier"
html_static_path = ["static"]
html_css_files = ["kvtier.css"]
html_extra_path = ["front"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
# A block that names no language is what a command prints.
highlight_language = "none"
pygments_style = "friendly"
pygments_dark_style = "github-dark"


def toctrees(index: str) -> str:
    """The pages in the tables of each section, as hidden toctrees: they make the navigation."""
    blocks = []
    for section in re.split(r"^## ", index, flags=re.MULTILINE)[1:]:
        caption, _, text = section.partition("\n")
        links = re.findall(r"^\| \[[^]]+\]\((\S+)\.md\)", text, re.MULTILINE)
        pages = [re.sub(r"^\.\./", "/", link) for link in links]
        options = [":hidden:", ":titlesonly:", f":caption: {caption}", ""]
        blocks.append("\n".join(["```{toctree}", *options, *pages, "```"]))
    return "\n\n".join(["", *blocks, ""])


def one_title(text: str) -> str:
    """The page with every heading but the first one level deeper, if several are of the first.

    The navigation would take each of those for a page.
    """
    parts = FENCE.split(text)
    titles = sum(len(re.findall(r"^# ", part, re.MULTILINE)) for part in parts[::2])
    if titles < 2:
        return text
    deeper = [re.sub(r"^#", "##", part, flags=re.MULTILINE) for part in parts[::2]]
    parts[::2] = [re.sub(r"\A##", "#", deeper[0]), *deeper[1:]]
    return "".join(parts)


def prepare(_app: Any, name: str, source: list[str]) -> None:
    source[0] = one_title(source[0])
    if name == root_doc:
        source[0] += toctrees(source[0])


def setup(app: Any) -> None:
    app.connect("source-read", prepare)
