"""The contract of techniques, samplers and guidances. `tintype check` and the tests check it on tiny plans."""
