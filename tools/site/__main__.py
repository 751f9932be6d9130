"""Build the site: `python -m tools.site --out build/docs`."""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from pathlib import Path

from tools.site import links
from tools.site.stage import FILES, PAGES, Stage

ROOT = Path(__file__).parents[2]
HTML = "html"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.site", description="Build the docs site, offline.")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "docs", help="folder to write to")
    out: Path = parser.parse_args().out.resolve()
    began_s = time.monotonic()
    shutil.rmtree(out / HTML, ignore_errors=True)
    Stage(ROOT, out).write()
    if (code := _build(out)) != 0:
        return code
    found = links.problems(out / HTML)
    sys.stdout.writelines(f"{problem}\n" for problem in found)
    count = len(list((out / HTML).rglob("*.html")))
    sys.stdout.write(f"{count} pages in {time.monotonic() - began_s:.0f} s: {out / HTML / 'index.html'}\n")
    return int(bool(found))


def _build(out: Path) -> int:
    from sphinx.cmd.build import main as sphinx

    own = Path(__file__).parent / "sphinx"
    options = ["-b", "html", "-c", str(own), "-d", str(out / "doctrees"), "-D", f"html_extra_path={out / FILES}"]
    code: int = sphinx([*options, "-E", "-W", "--keep-going", "-n", "-q", str(out / PAGES), str(out / HTML)])
    return code


if __name__ == "__main__":
    sys.exit(main())
