"""Parts that users add without changing tintype. They come from files that the user names, or from installed packages.

A plugin adds parts to the groups in `registry.GROUPS`: techniques, losses, objectives, samplers, metrics and more. A
file is loaded by `--plugin FILE` or the environment variable TINTYPE_PLUGINS. It has a module-level name for each
group: `LOSSES = (MyLoss,)`. A package has an entry point for each part, for example in the group `tintype.losses`.
"""
