"""Build the docs site from `docs/`, `studies/` and the code, offline.

    python -m tools.site --out build/docs    # build/docs/source, then build/docs/html

The pages are staged in `source`: those of `docs/` as they are, a page for each committed study, and the reference,
which is made from the settings, commands, techniques and metrics of the package. Sphinx builds them with warnings as
errors. Links out of `docs/` lead to copies in the site. At the end the built pages are read again: every link inside
the site must lead to a page, a file or a heading that exists, and no page may load anything from elsewhere.
"""
