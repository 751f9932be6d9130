"""Parts that users add without changing the package: from a file that they name, or from an installed package.

A plugin adds parts to the groups in `registry.GROUPS`: techniques, losses, objectives, samplers, metrics and more. A
file is loaded by `--plugin FILE` or the environment variable TINTYPE_PLUGINS. It has a module-level name for each
group: `LOSSES = (MyLoss,)`. A package has an entry point for each part, for example in the group `tintype.losses`.
"""
