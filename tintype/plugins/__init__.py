"""Parts that users add without changing tintype.

Plugins come from files that the user names, or from installed packages.

A plugin adds parts to the groups in `registry.GROUPS`, such as techniques, losses, objectives, samplers and metrics. A
file is loaded by `--plugin FILE` or the environment variable TINTYPE_PLUGINS. A plugin file has a module-level name for
each group, such as `LOSSES = (MyLoss,)`. A package has an entry point for each part, for example in the group
`tintype.losses`.
"""
