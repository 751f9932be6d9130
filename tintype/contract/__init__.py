"""The contract of techniques, samplers and guidances, which `tintype check` and the tests hold each of them to.

They are tried on plans of some kilobytes.
"""
