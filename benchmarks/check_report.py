"""Recompute the answer and the result tables of a comparison's report from the files of its runs.

    python -m benchmarks.check_report runs/which

This imports nothing of the package. It judges and summarises sweep.json and each run's outcome.json
and metrics.jsonl again, and compares the result with the answer and the tables of report.html. From
comparison.json it takes only the values that no run contains: the metric and its direction, the
titles, and the trivial baseline.
"""

from __future__ import annotations

import json
import math
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.recomputed import Check, gaps_of, read_runs, shared_seeds, sum_up, width_of

NUMBER = r"-?\d+(?:\.\d+)?(?:e-?\d+)?"
PLUS_MINUS = rf"({NUMBER})(?: ± ({NUMBER}))?"


class Page(HTMLParser):
    """Parser of the answer's sentences and of the tables by the label of their region."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.answer: list[str] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.into: list[list[str]] = []
        self.region = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Begin a sentence of the answer, or a row or entry of a table."""
        values = dict(attrs)
        if tag == "div" and values.get("role") == "region":
            self.region = values.get("aria-label") or ""
        elif tag == "tr":
            self.tables.setdefault(self.region, []).append([])
        elif tag in ("td", "th"):
            self.tables[self.region][-1].append("")
            self.into = [self.tables[self.region][-1]]
        elif tag == "p" and values.get("class") in ("answer", "more"):
            self.answer.append("")
            self.into = [self.answer]

    def handle_endtag(self, tag: str) -> None:
        """End it."""
        if tag in ("td", "th", "p"):
            self.into = []

    def handle_data(self, data: str) -> None:
        """Collect the text."""
        for texts in self.into:
            texts[-1] = " ".join(f"{texts[-1]}{data}".split())


def compare(check: Check, where: str, text: str | None, value: float | None) -> None:
    """Compare a printed number with a value, to the last printed digit."""
    if text is None or value is None:
        check.record((text or "–") == "–" and value is None, where, text, value)
        return
    found = re.search(NUMBER, text)
    mantissa, _, exponent = (found[0] if found else "nan").partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(mantissa.partition(".")[2]))
    # "5e+01" and "120" of two figures: the last zeros are no figures.
    if "." not in mantissa and not exponent and value != round(value):
        unit = max(unit, 10 ** (math.floor(math.log10(abs(value))) - 1))
    agree = found is not None and abs(float(found[0]) - value) <= 0.5001 * unit
    check.record(agree, where, text, value)


def check_tables(check: Check, page: Page, runs: list[dict[str, Any]], about: dict) -> None:
    """Compare the table of placements, the grid and the list of runs with the runs."""
    rows = page.tables["Placements, as a table"][1:]
    given = about["higher_is_better"], shared_seeds(runs)
    for (title, *texts), name in zip(rows, about["placements"], strict=True):
        sums = sum_up([run for run in runs if run["placement"] == name], *given)
        mean = fmean(sums["scores"]) if sums["scores"] else None
        score, _, rest = texts[1].partition(" ± ")
        compare(check, f"{title}, best rate", texts[0], sums["best"])
        compare(check, f"{title}, score", score, mean)
        compare(check, f"{title}, interval", rest or None, width_of(sums["scores"]))
        compare(check, f"{title}, stable", texts[2], sums["stable"])
        seeds = re.search(r"\((\d+) seed", texts[2])
        compare(check, f"{title}, seeds", seeds and seeds[1], sums["stable"] and sums["seeds"])
        if sums["next"] is not None:
            reported = f"{sums['next']:g}: {sums['failed']} of {sums['next_total']} failed"
            if not sums["failed"]:
                reported = f"{sums['next']:g}: results are missing"
            check.same(f"{title}, next rate", texts[3], reported)
        compare(check, f"{title}, sensitivity", texts[4], sums["sensitivity"])
        counts = [(sums[kind], kind) for kind in ("diverged", "did not learn") if sums[kind]]
        numbers = [sum(n for n, _ in counts), sums["total"]]
        numbers += [n for n, _ in counts] if len(counts) > 1 else []
        check.same(f"{title}, failed", [int(n) for n in re.findall(r"\d+", texts[5])], numbers)
    head, *rows = page.tables["Score at each learning rate, as a table"]
    for (title, *texts), name in zip(rows, about["placements"], strict=True):
        for rate, text in zip(head[1:], texts, strict=True):
            cell_runs = [run for run in runs if run["placement"] == name
                         and f"{float(run['learning_rate']):g}" == rate]  # fmt: skip
            check_group(check, f"{title} at {rate}", text, cell_runs)
    for run, row in zip(runs, page.tables["All runs"][1:], strict=True):
        where = f"run {', '.join(row[:3])}"
        cell = [run["placement"], f"{float(run['learning_rate']):g}", str(run["seed"])]
        check.same(where, row[:4], [*cell, run["status"]])
        compare(check, where, row[4], run.get("score"))


def check_group(check: Check, where: str, text: str, runs: list[dict[str, Any]]) -> None:
    """Compare one entry of the grid with its seeds."""
    status = [run["status"] for run in runs]
    scores = [run["score"] for run in runs if run["status"] == "finished"]
    for kind in ("diverged", "did not learn"):
        count = status.count(kind)
        found = re.search(rf"(?:(\d+) of \d+ )?{kind}", text)
        reported = 0 if found is None else int(found[1] or len(status) - status.count("missing"))
        check.same(f"{where}, {kind}", reported, count)
    if scores:
        value = re.match(PLUS_MINUS, text)
        compare(check, where, value and value[1], fmean(scores))
        compare(check, f"{where}, interval", value and value[2], width_of(scores))


class Answer:
    """Comparison of every number of the answer with the runs.

    Args:
        check: Collects agreements and differences.
        runs: Result of `read_runs`.
        about: The comparison.
    """

    def __init__(self, check: Check, runs: list[dict[str, Any]], about: dict[str, Any]) -> None:
        self.check = check
        self.missing_runs = sum(run["status"] == "missing" for run in runs), len(runs)
        self.names = {row["title"]: row["placement"] for row in about["summary"]}
        given = about["higher_is_better"], shared_seeds(runs)
        self.sums = {title: sum_up([run for run in runs if run["placement"] == name], *given)
                     for title, name in self.names.items()}  # fmt: skip
        # Titles become letters, so that their numbers do not count as numbers of the answer.
        self.letter = {title: chr(0xE000 + i) for i, title in enumerate(self.names)}
        self.title = {letter: title for title, letter in self.letter.items()}
        known = {title: own["scores"] for title, own in self.sums.items() if own["scores"]}
        self.gaps, choose = gaps_of(known), max if about["higher_is_better"] else min
        self.leader = choose(known, key=lambda title: fmean(known[title]), default="")
        one = f"([{''.join(self.title)}])"
        self.patterns = (
            (rf"{one} [a-z, ]+: {re.escape(about['metric'])} {PLUS_MINUS} at learning rate "
             rf"({NUMBER})", self.best),
            (rf"{one} \({PLUS_MINUS} (higher|lower)\)", self.behind),
            (rf"^Equal scores: ({one[1:-1]}(?:, {one[1:-1]})*)\.$", self.tied),
            (rf"{one} ({NUMBER}) \((?:the largest tested|(\d+) of (\d+) failed at ({NUMBER})|"
             rf"results missing at ({NUMBER}))\)", self.stable),
            (rf"(\d+) of (\d+) for {one}", self.lost),
            (rf"{one} has its best score at ({NUMBER}), above", self.above),
            (r"^(\d+) of (\d+) runs have no result yet", self.missing),
            (r"\((\d+) seeds at every rate\)", self.seeds),
        )  # fmt: skip

    def read(self, sentence: str) -> None:
        """Check one sentence; a number that matches no pattern is wrong."""
        self.sentence = text = sentence
        for title in sorted(self.letter, key=len, reverse=True):
            text = text.replace(title, self.letter[title])
        for pattern, judge in self.patterns:
            text = re.sub(pattern, judge, text)
        self.check.same(f"numbers left over in: {sentence}", re.findall(r"\d", text), [])

    def best(self, found: re.Match[str]) -> str:
        """Check the best placement."""
        title = self.title[found[1]]
        self.check.same("best placement", title, self.leader)
        first = self.sums[title]
        if not first["scores"]:
            return ""
        compare(self.check, "best score", found[2], fmean(first["scores"]))
        compare(self.check, "best score, interval", found[3], width_of(first["scores"]))
        compare(self.check, "rate of the best score", found[4], first["best"])
        return ""

    def behind(self, found: re.Match[str]) -> str:
        """Check another row's difference from the best, and its significance."""
        title = self.title[found[1]]
        mine, best = (self.sums.get(name, {}).get("scores") for name in (title, self.leader))
        if not mine or not best:
            self.check.wrong.append(f"{title} behind: the runs have no score to compare")
            return ""
        gap, width = self.gaps[frozenset((title, self.leader))]
        compare(self.check, f"{title} behind", found[2], gap)
        compare(self.check, f"{title} behind, interval", found[3], width)
        side = "higher" if fmean(mine) > fmean(best) else "lower"
        self.check.same(f"{title} behind", found[4], side)
        noise = width is not None and gap <= width
        self.check.same(f"{title} not significant", "Not significantly" in self.sentence, noise)
        return ""

    def tied(self, found: re.Match[str]) -> str:
        """Check the rows whose score equals the best."""
        for title in (self.title[letter] for letter in found[1].split(", ")):
            mine, best = (self.sums.get(name, {}).get("scores") for name in (title, self.leader))
            if mine and best:
                equal = math.isclose(fmean(mine), fmean(best), rel_tol=1e-12)
                self.check.same(f"{title} behind", True, equal)
            else:
                self.check.wrong.append(f"{title} behind: the runs have no score to compare")
        return ""

    def stable(self, found: re.Match[str]) -> str:
        """Check a largest stable rate and what happened at the next."""
        title, mine = self.title[found[1]], self.sums[self.title[found[1]]]
        compare(self.check, f"{title} stable", found[2], mine["stable"])
        compare(self.check, f"{title} next", found[5] or found[6], mine["next"])
        failed = (int(found[3] or 0), int(found[4] or mine["next_total"]))
        self.check.same(f"{title} failed", failed, (mine["failed"], mine["next_total"]))
        return ""

    def missing(self, found: re.Match[str]) -> str:
        """Check how many runs have no result yet."""
        self.check.same("missing runs", (int(found[1]), int(found[2])), self.missing_runs)
        return ""

    def seeds(self, found: re.Match[str]) -> str:
        """Check the number of seeds behind the largest stable rates."""
        known = {mine["seeds"] for mine in self.sums.values()}
        self.check.same("seeds everywhere", {int(found[1])}, known)
        return ""

    def lost(self, found: re.Match[str]) -> str:
        """Check how many runs of a placement diverged, or finished without learning."""
        title, mine = self.title[found[3]], self.sums[self.title[found[3]]]
        kind = "diverged" if "Diverged" in self.sentence else "did not learn"
        reported = (int(found[1]), int(found[2]))
        known = mine["others"] if "additional" in self.sentence else (mine[kind], mine["total"])
        self.check.same(f"{title} {kind}", reported, known)
        return ""

    def above(self, found: re.Match[str]) -> str:
        """Check a best rate above the largest stable one."""
        title, mine = self.title[found[1]], self.sums[self.title[found[1]]]
        compare(self.check, f"{title} best rate", found[2], mine["best"])
        beyond = mine["stable"] is None or mine["best"] > mine["stable"]
        self.check.same(f"{title} above its largest stable rate", True, beyond)
        return ""


def check_folder(folder: Path) -> Check:
    """Check the report of a comparison's folder."""
    about = json.loads((folder / "comparison.json").read_text())
    page = Page((folder / "report.html").read_text())
    runs = list(read_runs(folder, about))
    check = Check()
    check_tables(check, page, runs, about)
    answer = Answer(check, runs, about)
    for sentence in page.answer:
        answer.read(sentence)
    return check


if __name__ == "__main__":
    sys.exit(check_folder(Path(sys.argv[1])).print())
