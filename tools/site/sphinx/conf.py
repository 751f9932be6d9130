"""Sphinx's settings for the docs site. `python -m tools.site` passes the folders."""

from __future__ import annotations

from typing import Any

import tintype

project = "tintype"
release = version = tintype.__version__
copyright = "the authors of tintype, Apache-2.0"
extensions = ["myst_parser"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["myst.header"]  # pages begin with the level that GitHub shows well
smartquotes = False  # `--json` is an option also outside code
html_theme = "furo"
html_title = "tintype"
html_static_path = ["static"]
html_css_files = ["tintype.css"]
html_show_sphinx = False
html_copy_source = False
html_show_sourcelink = False
templates_path: list[str] = []
pygments_style, pygments_dark_style = "friendly", "github-dark"
html_theme_options: dict[str, Any] = {
    "light_css_variables": {
        "color-brand-primary": "#00706f",
        "color-brand-content": "#00706f",
        "color-background-primary": "#fbfaf7",
        "color-background-secondary": "#f4f2ec",
        "color-background-hover": "#e9e7e1",
        "color-background-border": "#e2dfd8",
        "color-foreground-primary": "#1c1e21",
        "color-foreground-secondary": "#5b6067",
        "color-sidebar-link-text": "#33373c",
        "color-sidebar-link-text--top-level": "#33373c",
        "font-stack": "system-ui, -apple-system, 'Segoe UI', Inter, Roboto, 'Noto Sans', 'Liberation Sans', sans-serif",
        "font-stack--headings": "'Iowan Old Style', 'Palatino Linotype', Palatino, 'Noto Serif', Georgia, serif",
    },
    "dark_css_variables": {
        "color-brand-primary": "#4fc3bd",
        "color-brand-content": "#4fc3bd",
        "color-background-primary": "#15171a",
        "color-background-secondary": "#1c1f23",
        "color-background-hover": "#2b2f35",
        "color-background-border": "#30343a",
        "color-foreground-primary": "#e8e6e1",
        "color-foreground-secondary": "#a9adb3",
        "color-sidebar-link-text": "#cfd2d6",
        "color-sidebar-link-text--top-level": "#cfd2d6",
    },
}
