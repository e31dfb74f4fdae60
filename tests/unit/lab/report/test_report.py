"""The report of a comparison with known numbers."""

import csv
import html
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from magneto.commands.compare import table
from magneto.lab.outcome import Judge, group_cells
from magneto.lab.report.figures import draw_scores
from magneto.lab.report.plot import Plot, series_of
from magneto.lab.report.report import (
    as_markdown,
    facts,
    reason_sentences,
    seeds_text,
    subtitle,
    write_report,
)
from tests.unit.lab.invented import assemble, cell, cells

JUDGE = Judge("loss", False, 7.8)
SCORES = {
    "post": {1e-3: [6.41, 6.43], 1e-2: [6.42, None], 1.0: [None, None]},
    "sub": {1e-3: [5.51, 5.53], 1e-2: [5.01, 5.03], 1.0: [5.91, 5.93]},
    "<mine> & odd": {1e-3: [5.21, 5.23], 1e-2: [5.11, 5.13], 1.0: ["missing", "missing"]},
    "keel": {1e-3: [7.9, 7.9], 1e-2: [5.31, 5.33], 1.0: [None, 7.9]},
}


def comparison() -> dict[str, Any]:
    updates = [
        {"placement": name, "layers": layers, "seed": seed, "reading": reading,
         "optimizer": "sgd", "value": layers ** (1.0 if name == "post" else 0.1) * (1 + seed / 10)}
        for name in SCORES for layers in (6, 12, 24) for seed in (0, 1)
        for reading in ("label", "output")
    ]  # fmt: skip
    growth = [
        {"placement": name, "reading": reading, "optimizer": optimizer, "exponent": 1.0,
         "interval": 0.1, "ratio": ratio, "ratio_range": [3.5, 4.5], "depths": [6, 24]}
        for name in SCORES for reading in ("label", "output")
        for optimizer, ratio in (("sgd", 4.0), ("adam", 4.4))
    ]  # fmt: skip
    grid = [one for name, table in SCORES.items() for one in cells(name, table)]
    return assemble(grid, JUDGE) | {
        "measured": {
            "width": 48, "depths": [6, 12, 24], "updates": updates, "growth": growth,
            "bounds": {"post": {"paper": [24.0, 48.0, 96.0]}, "sub": {"paper": [3.2, 3.0, 2.8]}},
            "activations": {
                name: {f"decoder.layers.{i}": 1.0 + i for i in range(24)} for name in SCORES
            },
        },
    }  # fmt: skip


def words_of(page: str) -> str:
    """Return what a reader sees of a page."""
    shown = re.sub(r"<(style|script).*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(shown).split())


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the report."""
    folder = tmp_path_factory.mktemp("report") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Plot, "pdf", lambda plot: b"")
        assert write_report(comparison(), folder) == folder / "report.html"
    return folder


def test_page_is_whole_and_needs_nothing_else(made: Path) -> None:
    text = (made / "report.html").read_text()
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    outside = re.findall(r'\b(?:src|href)="([^#][^"]*)"', text)
    away = [where for where in outside if not (made / where).is_file()]
    assert away == ["https://arxiv.org/abs/2309.14322"]
    assert "@import" not in text and "url(http" not in text
    for target in re.findall(r'(?:href="#|url\(#)([^")]+)', text):
        assert target in ids


def test_page_says_the_answer_first_and_all_numbers(made: Path) -> None:
    words = words_of((made / "report.html").read_text())
    best = words.index("Sub-LN has the best score so far: loss 5.02 ± 0.13 at learning rate 0.01.")
    assert best < words.index("Score against learning rate")
    assert words.count("2 of 24 runs have no result yet") == 1
    for part in ("The grid is incomplete.", "5.020 ± 0.127", "6.420 (1 of 2 diverged)",
                 "3 of 6 diverged", "at step 67: the loss is nan",
                 "× 4.00 (3.50 to 4.50)", "2.13.0, 2.14.0", "abc123", "--model.layers 24",
                 "22 of 24; 3.7 minutes", "<mine> & odd", "width 48",
                 "decoder.layers.23", "24 layers, width 48, 200 steps, 4 placements × 3",
                 "Sub-LN (best score)", "0.01: 1 of 2 failed", "0.01 (above the largest stable)",
                 "4 of 6: 1 diverged, 3 did not learn", "1 of 2 diverged, 1 of 2 did not learn",
                 "1: results are missing",
                 "loss 7.8 on the same data. A run learned if it ends below 7.644"):  # fmt: skip
        assert part in words, part
    assert not re.search(r"\b1e-[23]\b", words)  # one notation for rates
    rows = re.findall(r"<tr.*?</tr>", (made / "report.html").read_text(), re.DOTALL)
    # By these a click sorts the summary and the grid.
    keys = [re.findall(r'data-key="([\d.]*)"', row) for row in rows if "Keel<" in row][:2]
    assert [keys[0][1:5], keys[0][6], keys[1][1:]] == [
        ["0.01", "5.32", "", "0.001"], "4", ["", "5.32", ""],
    ]  # fmt: skip


def test_every_placement_is_in_every_figure_it_has_values_for(made: Path) -> None:
    text = (made / "report.html").read_text()
    found = re.search(r'id="hits">(.*?)</script>', text, re.S)
    assert found
    hits = json.loads(found[1])
    shown = {name: {line["series"] for line in lines} for name, lines in hits.items()}
    for name, lines in hits.items():
        box = re.search(rf'id="{name}".*?viewBox="0 0 ([\d.]+) ([\d.]+)"', text, re.S)
        assert box
        places = [point for line in lines for point in line["points"]]
        assert all(0 <= x <= float(box[1]) and 0 <= y <= float(box[2]) for x, y, _ in places)
    every = {0, 1, 2, 3}
    assert shown == {
        "scores": every, "curves0": every, "curves1": every, "curves2": {0, 1, 3},
        "update-label": every, "update-output": every, "activations": every,
    }  # fmt: skip
    assert text.count("<button") == 4
    files = {path.name for path in (made / "figures").iterdir()}
    assert files == {f"{name}.{kind}" for name in shown for kind in ("svg", "pdf")}


def test_every_colour_of_a_figure_has_another_on_a_dark_page(made: Path) -> None:
    text = (made / "report.html").read_text()
    style, page = text.split("</style>")
    # No ancestor stands before it: a marker that is drawn by reference has none.
    rule = r'^ *\[style\*="((?:fill|stroke): #\w{6})"\] \{ (?:fill|stroke): \S+ !important'
    replaced = re.findall(rule, style, re.M)
    drawn = set(re.findall(r"(?:fill|stroke): #\w{6}", page))
    assert len(drawn) > 8 and drawn <= set(replaced)


def test_the_same_comparison_gives_the_same_bytes() -> None:
    known = comparison()
    series = series_of(known["placements"], {})
    first, second = (draw_scores(known, group_cells(known), series) for _ in range(2))
    assert (first.svg, first.hits) == (second.svg, second.hits)
    assert first.pdf() == second.pdf()
    assert as_markdown(known) == as_markdown(comparison())


def test_markdown_and_csv(made: Path) -> None:
    text = (made / "report.md").read_text()
    assert "| Sub-LN | 5.520 ± 0.127 | **5.020 ± 0.127** | **5.920 ± 0.127** |" in text
    assert "| Post-LN | 0.001 | 6.420 ± 0.127 | 0.001 (2 seeds) | 0.01: 1 of 2 failed |" in text
    assert "| Post-LN | 6.420 ± 0.127 | 6.420 (1 of 2 diverged) |" in text
    assert "| decoder.layers.12 | 13 | 13 | 13 | 13 |" in text
    assert "| Sub-LN | × 4.00 (3.50 to 4.50) | × 0.87 |" in text
    assert "Significance is decided by Welch's t test" in text
    assert "| Keel | did not learn | 5.320 ± 0.127 | 1 of 2 diverged, 1 of 2 did not" in text
    rows = list(csv.DictReader((made / "report.csv").open()))
    assert len(rows) == 24
    lost = [row for row in rows if row["status"] == "diverged"]
    assert [(r["placement"], r["diverged_at"]) for r in lost] == [("post", "67")] * 3 + [
        ("keel", "67")
    ]
    points = list(csv.DictReader((made / "curves.csv").open()))
    assert len(points) == 22 * 20 + 4
    assert points[0] == {
        "placement": "post", "learning_rate": "0.001", "seed": "0", "status": "finished",
        "curve_of": "training", "step": "10", "loss": str(8 + (6.41 - 8) / 20),
    }  # fmt: skip


def test_sentences_about_rows_and_seeds() -> None:
    known = comparison()
    reasons = {"measured": {"reasons": {"post": ["one", "two"], "keel": []}}}
    assert reason_sentences(known | reasons) == [
        "Probe of Post-LN at learning rate 0.001. One. Two.",
        "Probe of Keel at learning rate 0.001. None of its measurements predicts failure.",
    ]
    printed = table(known | reasons).splitlines()
    assert printed[-len(known["answer"]) - 2 :] == [
        *known["answer"],
        *reason_sentences(known | reasons),
    ]
    seeds = seeds_text({"seeds": [1], "seeds_near_best": [2, 3]})
    assert seeds == "1 seed (3 near the best rate of each row)"
    shown = dict(facts(known | {"seeds_near_best": [2, 3]}, ""))
    assert (shown["seeds"], shown["seeds near the best rate"]) == ("0, 1", "2, 3")
    pair = {"config": {"model": {"encoder_layers": 6, "decoder_layers": 3}}}
    assert subtitle(known | pair).startswith("6 + 3 layers, 4 placements × 3 learning rates × 2 s")


def test_a_terminal_shows_the_numbers_of_the_report() -> None:
    """A cell with a failed seed shows the mean of the others and their number."""
    known = comparison()
    lines = [line.split("  ") for line in table(known).splitlines()]
    rows = {line[0]: [part.strip() for part in line[1:] if part] for line in lines if line[0]}
    assert rows["Post-LN"] == ["6.420", "6.420 (1/2)", "diverged"]
    assert rows["Sub-LN"] == ["5.520", "5.020", "5.920"]
    assert rows["<mine> & odd"] == ["5.220", "5.120", "- [0/2]"]
    assert rows["Keel"] == ["not learned", "5.320", "failed"]
    text = table(known)
    assert "A run learned if it ends below 7.644" in text
    assert "(4/5) means that 4 of 5 seeds learned" in text


def test_without_measurements_or_results(tmp_path: Path, without_rendering: None) -> None:
    known = comparison()
    rates = known["learning_rates"]
    grid = [cell(name, rate, 1, "missing") for name in SCORES for rate in rates]
    bare = assemble(grid, Judge("loss", False))
    page = write_report(bare, tmp_path, downloads=False).read_text()
    assert 'href="figures/' not in page and {*tmp_path.iterdir()} == {
        tmp_path / f"report.{kind}" for kind in ("html", "md", "csv")
    }  # fmt: skip
    words = words_of(page)
    assert "There is no result yet." in words and "12 of 12 runs have no result yet" in words
    assert "no result yet" in words and "trivial baseline" not in words


def test_rows_that_are_equal_as_shown_are_all_marked_and_a_row_alone_is_not() -> None:
    scores = {"sub": 5.50001, "pre": 5.5, "post": 5.7}
    text = as_markdown(assemble([cell(name, 1e-3, 1, at) for name, at in scores.items()], JUDGE))
    assert all(f"**{title}**" in text for title in ("Sub-LN", "Pre-LN"))
    assert text.count("**5.500**") == 2 and "**Post-LN**" not in text
    alone = assemble([cell("sub", 1e-3, seed, 5.5 + seed / 10) for seed in (1, 2)], JUDGE)
    assert "**Sub-LN**" not in as_markdown(alone)
    assert "**Sub-LN has its best score: loss 5.65" in as_markdown(alone)
    assert "Significance is" not in as_markdown(alone)
    accuracies = [cell(name, 1e-3, 1, at) for name, at in (("sub", 0.9), ("pre", 0.8))]
    text = as_markdown(assemble(accuracies, Judge("accuracy", True, 0.5)))
    assert "**Sub-LN**" in text and text.count("**0.9000**") == 1 and "higher is better" in text
    assert "**Pre-LN**" not in text and "if it ends above 0.51 " in text


SCRIPT = """<script>
const errors = [];
window.addEventListener("error", (event) => errors.push(event.message));
window.addEventListener("load", () => {
  const pressed = [...document.querySelectorAll(".legend button")];
  const hidden = pressed.filter((one) => one.getAttribute("aria-pressed") === "false");
  const said = hidden.map((one) => one.dataset.name);
  hidden.forEach((one) => one.click());
  const lines = () => [...document.querySelectorAll('#scores .series[data-series="1"]')];
  const visible = () => lines().some((line) => getComputedStyle(line).display !== "none");
  const button = document.querySelector('.legend button[data-series="1"]');
  const seen = [lines().length > 0, visible()];
  button.click();
  seen.push(visible(), button.getAttribute("aria-pressed"));
  button.click();
  seen.push(visible(), button.getAttribute("aria-pressed"));
  const plot = document.getElementById("scores");
  const press = (key) => plot.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  press("ArrowRight"); press("ArrowDown");
  seen.push(document.getElementById("tip").textContent);
  const tip = document.getElementById("tip");
  const touch = (kind, x, y) => plot.dispatchEvent(new PointerEvent(
    kind, { pointerType: "touch", clientX: x, clientY: y, bubbles: true }));
  press("Escape");
  const box = plot.querySelector("svg").getBoundingClientRect();
  const scale = box.width / plot.querySelector("svg").viewBox.baseVal.width;
  const [x, y] = hits.scores[0].points[0];
  touch("pointerdown", box.left + x * scale, box.top + y * scale);
  touch("pointerleave", 0, 0);
  seen.push(!tip.hidden);
  button.click();
  seen.push(location.search);
  const link = document.querySelector('a[href="figures/scores.svg"]');
  link.addEventListener("click", (event) => event.preventDefault());
  link.click();
  seen.push(link.href.startsWith("blob:"));
  const table = document.querySelector("table.sortable");
  const order = () => [...table.tBodies[0].rows].map((row) => row.cells[2].dataset.key);
  for (const times of [1, 2]) {
    table.tHead.rows[0].cells[2].querySelector("button").click();
    seen.push(order());
  }
  const wide = document.documentElement.scrollWidth > document.documentElement.clientWidth;
  const out = document.createElement("pre");
  out.id = "outcome";
  out.textContent = JSON.stringify({ said, seen, errors, wide });
  document.body.append(out);
});
</script>"""


@pytest.mark.slow
def test_in_a_browser(made: Path) -> None:
    """It renders without errors, series can be hidden, keys move the tooltip; nothing overflows."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium on this machine")
    page = made / "driven.html"
    text = (made / "report.html").read_text()
    page.write_text(text.replace("<head>", "<head>" + SCRIPT, 1))
    found = subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=5000",
         "--window-size=500,900", "--enable-logging=stderr", "--dump-dom",
         page.as_uri() + "?hide=keel&hide=%3Cmine%3E+%26+odd"],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    outcome = re.search(r'<pre id="outcome">(.*?)</pre>', found.stdout)
    assert outcome, found.stdout[-500:]
    seen = json.loads(html.unescape(outcome[1]))
    assert seen["errors"] == [] and "CONSOLE" not in found.stderr
    assert seen["said"] == ["<mine> & odd", "keel"], "what the address hides is hidden"
    assert seen["seen"][:6] == [True, True, False, "false", True, "true"]
    assert seen["seen"][6].startswith("Sub-LN, rate 0.001: 5.520")
    assert not seen["wide"]
    touched, address, taken, up, down = seen["seen"][7:]
    assert touched and address == "?hide=sub" and taken
    known = [float(key) for key in up]
    assert known == sorted(known) and down == up[::-1] and len(known) == 4
