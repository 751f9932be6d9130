"""The modules of plugin files.

An import of this package loads the files, so any process can unpickle their settings.
"""

from tintype.plugins.load import load_environment

load_environment()
