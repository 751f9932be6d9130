"""The contract of techniques, samplers and guidances, as checked by `tintype check` and the tests on tiny plans."""
