"""Check the figures and verdicts of README, docs and the studies' READMEs against committed data.

    python -m tools.figures            # check, and list what is wrong
    python -m tools.figures --write    # also rewrite the blocks that are made from data

A figure in prose is covered by one of three:

- a `Quote` (tools/figures/claims): a fragment of the page with values filled in from data, and the condition under
  which the data allow the sentence;
- a `Block`: a table or paragraph that is made from data, after a marker `<!-- made by tools/figures: NAME -->`;
- an entry in tools/figures/stated.yaml: a fragment whose figures are no results of ours, such as a setting, a rule,
  arithmetic, or a published figure.

A figure that nothing covers is an error, and so is a fragment that its page does not have exactly once. In the pages
that report results (the studies' READMEs, docs/findings.md, and "What it finds" in README.md) words that state
a verdict or a size (better, worse, costs, halves, …) must be covered too.
"""
