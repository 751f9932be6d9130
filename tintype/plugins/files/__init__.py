"""The modules of plugin files. A process that unpickles settings of such a file imports this package, and so has it."""

from tintype.plugins.load import load_environment

load_environment()
