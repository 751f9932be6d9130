"""The contract of techniques: what `tintype check` and the tests hold each of them to, on plans of some kilobytes."""
