"""What the pages lead to and name is there: links, and commits that numbers were measured at."""

import json
import re
import subprocess
import unicodedata
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]
DOCS, RESULTS = ROOT / "docs", ROOT / "benchmarks" / "results"
TEXTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md",
         *sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("benchmarks/**/*.md"))]  # fmt: skip
PAGES = sorted(DOCS.rglob("*.html"))
# Commits of other repositories that pages name.
FOREIGN = {"a013f00", "c4e6a0e", "4d1e0e8", "3d262bb"}


def prose(page: Path) -> str:
    """Return a page without code."""
    text = page.read_text(encoding="utf-8")
    return re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.DOTALL | re.MULTILINE)


def links(page: Path) -> list[str]:
    if page.suffix == ".html":
        return re.findall(r'(?:href|src)="([^"]*)"', page.read_text(encoding="utf-8"))
    return re.findall(r"\]\(([^)\s]+)\)|(?:href|src|srcset)=\"([^\"]+)\"", prose(page))


@cache
def anchors(page: Path) -> set[str]:
    """Return what a link to a place in a page may end in; headings as MkDocs names them."""
    text = page.read_text(encoding="utf-8")
    found = set(re.findall(r'\b(?:id|name)="([^"]+)"', text))
    for heading in re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE):
        plain = unicodedata.normalize("NFKD", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading))
        word = re.sub(r"[^\w\s-]", "", plain.encode("ascii", "ignore").decode()).strip().lower()
        found.add(re.sub(r"[-\s]+", "-", word))
    return found


def test_links_lead_somewhere() -> None:
    broken = []
    for page in (*TEXTS, *PAGES):
        for link in (each if isinstance(each, str) else "".join(each) for each in links(page)):
            path, _, place = unquote(link).partition("#")
            if re.match(r"[a-z]+:", link):
                continue
            goal = (page.parent / path).resolve() if path else page
            # "only-light" and "only-dark" are the theme's, of figures.
            known = place in ("", "only-light", "only-dark") or (
                goal.suffix in (".md", ".html") and goal.is_file() and place in anchors(goal)
            )
            if not goal.exists() or not known:
                broken.append(f"{page.relative_to(ROOT)}: {link}")
    assert not broken, "\n".join(broken)


def in_history(commits: set[str]) -> set[str]:
    """Return those of some commits that HEAD descends from.

    A tarball and a shallow clone do not have the history: the test is skipped.
    """

    def git(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)

    if not (ROOT / ".git").exists():
        pytest.skip("no repository here")
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("this clone has not the whole history, or git is missing")
    known = git("log", "--format=%H").stdout.split()
    return {commit for commit in commits if any(whole.startswith(commit) for whole in known)}


def commit_of(name: str) -> str:
    """Return the commit of a result, "" where it names none."""
    result = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    holders = (result, result.get("machine") or {}, result.get("environment") or {})
    return next((holder["commit"] for holder in holders if holder.get("commit")), "")


def test_commits_that_pages_and_results_name_are_in_the_history() -> None:
    named = {
        (str(page.relative_to(ROOT)), commit)
        for page in TEXTS
        for commit in re.findall(
            r"(?<![\w/])(?=\w*\d)(?=\w*[a-f])[0-9a-f]{7,12}\b",
            re.sub(r"https?:\S+", "", prose(page)),
        )
    }
    named |= {(path.name, commit_of(path.stem)) for path in RESULTS.glob("*.json")}
    known = in_history({commit for _, commit in named if commit}) | FOREIGN | {""}
    assert not {(page, commit) for page, commit in named if commit not in known}
