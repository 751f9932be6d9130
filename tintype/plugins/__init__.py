"""Parts that users add without touching the package: from a file that they name, or from an installed package.

A plugin adds parts of the kinds in `registry.GROUPS`: techniques, losses, objectives, samplers, metrics and more. A
file is loaded by `--plugin FILE` or by the variable TINTYPE_PLUGINS, and has a module-level name for each group:
`LOSSES = (MyLoss,)`. A package has an entry point for each part, in the group `tintype.losses`.
"""
