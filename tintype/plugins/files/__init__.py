"""The modules of plugin files. Importing this package loads them, so any process can unpickle their settings."""

from tintype.plugins.load import load_environment

load_environment()
