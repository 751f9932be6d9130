"""Page of the reference on files: what lies in the folders that tintype writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from tintype.data.store import layout
from tintype.evaluation.results import MISREAD_FILE, PER_IMAGE_FILE
from tintype.study.looks import LOOKS_FILE
from tintype.study.replicate import FOLDER as REPLICATION
from tintype.study.runs import COMMANDS_FILE
from tintype.study.version import VERSION
from tintype.train.record import ABOUT, FAILURES
from tools.site.words import code, table

RUN = {
    "plan.yaml": "the plan, with every default resolved",
    "metrics.jsonl": "a line for each logged step: losses, gradient norm, learning rate, speed",
    "events.jsonl": "a line for each event: a skipped step, a repaired file, a resume on another machine",
    "environment.json": "the machine, the versions, and why the run is not exact, where it is not",
    "optimizer.json": "how each tensor is optimized",
    "loaded.json": "hashes of the frozen weights that the run has loaded",
    "latents.json": "the tokenizer, and statistics of its latents",
    "lineage.json": "the run whose weights it started from",
    "imported.json": "where the weights of an imported run came from",
    FAILURES["diverged"]: "why the run diverged; only in such a run",
    FAILURES["failed"]: "why the run failed; only in such a run",
    "checkpoints/step-*/*": "weights, optimizer and counters at a step, with their SHA-256 in `manifest.json`",
    "snapshots/step-*/*": "weight averages of all lengths at a step, of a run with `power-ema`",
    "kept/*/*": "weights at the steps of a study's `score_at`, until they are scored",
    "evaluation/*/result.json": "scores by one protocol at one step",
    f"evaluation/*/{PER_IMAGE_FILE}": "the scores of each image, for metrics that have one",
    f"evaluation/*/{MISREAD_FILE}": "the words of the previewed prompts that the images got wrong",
    "evaluation/*/preview-*.png": "the first images of an evaluation",
    "evaluation/*/copy-*.png": "samples of training captions beside the nearest training images, nearest first",
    "evaluation/samples/*/*": "sampled images, which other metrics on the same images read",
    ".lock": "held by the process that writes to the run",
}
"""Patterns of the files of a run's folder, and what they are."""
STUDY = {
    "study.yaml": "the study, with every default resolved",
    "baseline.yaml": "the plan of the baseline",
    COMMANDS_FILE: "the commands that were given",
    VERSION: "the version that began the study, and its NUMERICS",
    LOOKS_FILE: "which seeds each look has added; the first one has the study's own",
    "results.json": "the runs' scores, the comparisons and the verdicts",
    "results.csv": "a row for each run and metric",
    "verdicts.csv": "a row for each verdict",
    "report.html": "the report as a page that needs no other file",
    "report.md": "the report as text",
    "prompts/*/*": "copies of the prompt files that the study reads",
    "real/preview-*.png": "real images of the previewed prompts",
    "runs/*/": "the folders of the runs, each named by the hash of its plan",
    "leases/*/*": "which worker had which run, how far it got, and how it ended",
    f"{REPLICATION}/*": "the study of the fresh seeds, and what became of each verdict",
    ".lock": "held by the process that writes the study's own files",
}
"""Patterns of the files of a study's folder, and what they are."""
STORE = {
    layout.ABOUT: "what the store holds: shards, columns, splits and their checksums",
    "shard-*.arrow": "images as they were, with their captions and attributes",
    "*-*.arrow": "captions that were added later, a file for each shard",
    layout.QUARANTINE: "what could not be imported, and why",
}
"""Patterns of the files of a store, and what they are."""
EXPORT = {
    ABOUT: "which weights it has, and the SHA-256 of its files",
    "plan.yaml": "the plan, without what names a path of the machine that trained",
    "README.md": "the model card",
    "checkpoints/step-*/*": "weights alone, without the state of the training",
    "text/, tokenizer/": "weights of others that the plan named by a folder of the machine",
    "card-samples/": "images of the card",
    "loaded.json, environment.json, …": "the records of the run",
}
"""Patterns of the files that `tintype export --to tintype` writes, and what they are."""
CACHE = {
    "weights/": "published weights, converted to safetensors",
    "first-use/": "the hash that published weights had when they were first used",
    "text/": "embeddings of captions",
    "latents/": "latents of images",
    "teacher/": "features of frozen teachers",
    "looks/": "perceptual hashes of the images of stores",
}
"""Folders of the cache, and what they have."""


def page() -> Iterator[str]:
    yield "# Files on disk\n"
    yield (
        "Tensors are safetensors, everything else is text (YAML, JSON, JSON Lines) or an image: nothing that is read "
        "back can hold code. Files are written whole or not at all, and those that a training or a verdict depends on "
        "carry checksums ([checkpoints](../checkpoints.md)).\n"
    )
    for title, words, entries in (
        ("A run", "`tintype train … --out DIR` writes", RUN),
        ("A study", "`tintype ablate … --out DIR` writes", STUDY),
        ("A store", "`tintype data import … --out DIR` writes", STORE),
        ("An exported model", "`tintype export … --to tintype --out DIR` writes", EXPORT),
        (
            "The cache",
            "`$TINTYPE_CACHE`, by default `~/.cache/tintype`, has what can be computed or fetched again, and may be "
            "deleted:",
            CACHE,
        ),
    ):
        yield f"## {title}\n"
        yield f"{words}\n"
        yield from table(("file", "what it is"), [(code(name), text) for name, text in entries.items()])


def is_known(path: PurePosixPath) -> bool:
    """Return whether a file of a study's folder, by its path in it, is on the page."""
    parts = path.parts
    if parts[0] == "runs" and len(parts) > 2:
        return _matches(PurePosixPath(*parts[2:]), RUN)
    return _matches(path, STUDY)


def _matches(path: PurePosixPath, entries: dict[str, str]) -> bool:
    return any(path.match(pattern) and len(path.parts) == pattern.count("/") + 1 for pattern in entries)
