"""Parts that users add without changing tintype, from files that users name, or from installed packages.

A plugin adds parts to the groups in `registry.GROUPS`. A file is loaded by `--plugin FILE` or the environment variable
TINTYPE_PLUGINS. A plugin file has a module-level name for each group, such as `LOSSES = (MyLoss,)`. A package has an
entry point for each part, for example in the group `tintype.losses`.
"""
