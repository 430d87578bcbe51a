"""The report in a real browser: it loads nothing else, plots, reacts to clicks and keys, and fits phones and paper."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

import tightrope as tr
from tightrope.experiments import report, summary, verdicts
from tightrope.experiments.base import COLUMNS, Check, Entry, Experiment, Part
from tightrope.experiments.outcome import Outcome

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage"
)
NASTY = "<script>document.title = 'broken'</script> & \"quotes\" </script> $name"
ENTRIES = ("first", NASTY)
PARTS = ("one", "two <i>tagged</i>")
LONG = "SwitchingSubgradient(step_size=0.1,tolerance=0.01," + "x" * 120 + ")"


def frame(seeds=3, records=8):
    """Curves that fall, the second twice as high and twice as slow; the violation of the last records is 0."""
    rows = []
    for place, entry in enumerate(ENTRIES, start=1):
        for seed in range(seeds):
            for step in range(records):
                value = place * (1.0 + 0.1 * seed) / (1 + step)
                violation = value if step < records - 2 else 0.0
                record = {"step": step, "samples": 4000 * step, "seconds": 0.01 * place * step, "objective": value}
                record |= {"violation": violation, "stationarity": value, "status": "budget"}
                rows.append({"entry": entry, "seed": seed} | record)
    return pd.DataFrame(rows)


def outcome(folder):
    method = tr.methods.GradientDescentAscent()
    entries = tuple(Entry(label, (method, method), note=NASTY) for label in ENTRIES)
    tried = {"settings": LONG, "score": [0.5], "status": "budget", "steps": 7, "samples": 28_000}
    run = {"tuning": [tried] * 2, "chosen": LONG, "steps": 7, "samples": [28_000] * 3, "seconds": 1.5, "note": NASTY}
    return Outcome(
        experiment=Experiment("nasty", NASTY, "paper 0", f"{NASTY}\n\nMore.", lambda quick: [], lambda runs: []),
        quick=False,
        folder=folder,
        parts={name: Part(name, tr.zoo.lens, entries, steps=7, seeds=3) for name in PARTS},
        frames={name: frame() for name in PARTS},
        runs={name: {label: run | {"statuses": {"budget": 3}} for label in ENTRIES} for name in PARTS},
        checks=[Check(NASTY, {"a": 0.123456}, True, "by hand"), Check("no", [1, float("nan")], False, LONG)],
    )


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    figure = Figure()
    figure.subplots().plot([1, 2])
    path = folder / "report.html"
    path.write_text(report.page(outcome(folder), {NASTY: figure}), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("there is no chromium with a chromedriver here")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in [*FLAGS.split(), f"--user-data-dir={tmp_path_factory.mktemp('profile')}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    yield chrome
    chrome.quit()


def open_at(browser, file, width=1200):
    """Load the page at a width, with logs that begin here."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get("about:blank")
    for kind in ("browser", "performance"):
        browser.get_log(kind)
    browser.get(file.as_uri())
    WebDriverWait(browser, 30).until(lambda page: page.find_elements(By.CSS_SELECTOR, ".main-svg"))


@pytest.fixture
def page(browser, file):
    open_at(browser, file)
    return browser


def lines(browser, panel="panel-0-0"):
    """The curves of a panel that are drawn, as SVG path data."""
    found = browser.find_elements(By.CSS_SELECTOR, f"#{panel} .scatterlayer path.js-line")
    return [path.get_attribute("d") for path in found if path.value_of_css_property("stroke-width") != "0px"]


def ends(browser):
    """How far the curves of the first panel reach to the right."""
    return [round(float(re.search(r"([\d.]+),[\d.]+$", line)[1])) for line in lines(browser)]


def bands(browser, panel="panel-0-0"):
    return browser.find_elements(By.CSS_SELECTOR, f"#{panel} .scatterlayer path.js-fill")


def axis_titles(browser, which):
    return {title.text for title in browser.find_elements(By.CSS_SELECTOR, f".{which}title")}


def test_it_loads_without_an_error_and_requests_nothing_else(page, file):
    assert page.get_log("browser") == []
    messages = [json.loads(entry["message"])["message"] for entry in page.get_log("performance")]
    asked = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
    assert [url for url in asked if not url.startswith("data:")] == [file.as_uri()]
    sent = re.sub(r"<script>.*?</script>", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
    assert not re.search(r"""(src|href)=["']?(?!data:)[a-z]+:""", sent)


def test_markup_in_texts_is_escaped(page):
    assert page.title == NASTY
    assert page.find_element(By.TAG_NAME, "h1").text == NASTY
    assert page.find_elements(By.TAG_NAME, "i") == []
    assert page.find_element(By.CSS_SELECTOR, "figure img").get_attribute("alt") == NASTY
    assert page.find_element(By.TAG_NAME, "html").get_attribute("lang") == "en"


def test_every_panel_has_a_line_and_a_band_for_each_entry_and_units_on_its_axes(page):
    for part in range(len(PARTS)):
        for column in range(len(COLUMNS)):
            panel = f"panel-{part}-{column}"
            assert len(set(lines(page, panel))) == len(ENTRIES)
            assert len(bands(page, panel)) == len(ENTRIES)
            description = page.find_element(By.ID, panel).get_attribute("aria-label")
            assert COLUMNS[column].label in description
            assert "ends at" in description
    assert axis_titles(page, "x") == {"samples drawn"}
    assert axis_titles(page, "y") == {column.label for column in COLUMNS}


def test_zero_has_a_tick_on_a_logarithmic_axis(page):
    ticks = [tick.text for tick in page.find_elements(By.CSS_SELECTOR, "#panel-0-1 .ytick text")]
    assert ticks[0] == "0"
    assert len(ticks) > 2


@pytest.mark.parametrize(
    ("low", "high", "texts"),
    [
        (0.04, 0.7, ["0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1"]),
        (2e-4, 30.0, ["10<sup>-4</sup>", "10<sup>-3</sup>", "10<sup>-2</sup>", "10<sup>-1</sup>", "10<sup>0</sup>"]),
    ],
)
def test_only_a_short_logarithmic_axis_has_ticks_between_powers_of_ten(low, high, texts):
    ticks = report._ticks(-np.inf, [{"low": [low], "high": [high]}, {"low": [], "high": []}])
    assert ticks["texts"][: len(texts)] == texts
    assert len(ticks["values"]) == len(ticks["texts"]) <= 9
    assert report._ticks(-np.inf, [{"low": [], "high": []}])["values"] is None


def test_the_legend_hides_a_curve_of_its_part_alone_and_shows_it_again(page):
    button = page.find_element(By.CSS_SELECTOR, ".legend button")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert len(lines(page)) == len(bands(page)) == len(ENTRIES) - 1
    assert len(lines(page, "panel-0-2")) == len(ENTRIES) - 1
    assert len(lines(page, "panel-1-0")) == len(ENTRIES)
    button.click()
    assert button.get_attribute("aria-pressed") == "true"
    assert len(lines(page)) == len(bands(page)) == len(ENTRIES)


def test_the_switch_and_the_legend_work_from_the_keyboard(page):
    first, second = ends(page)
    assert first == second
    body = page.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB, Keys.TAB)
    focused = page.switch_to.active_element
    assert focused.text == "Wall time"
    assert focused.value_of_css_property("outline-style") == "solid"
    focused.send_keys(Keys.SPACE)
    assert axis_titles(page, "x") == {"wall time (s)"}
    first, second = ends(page)
    assert first == pytest.approx(second / 2, abs=2)
    pressed = [b.get_attribute("aria-pressed") for b in page.find_elements(By.CSS_SELECTOR, ".switch button")]
    assert pressed == ["false", "true"]
    focused.send_keys(Keys.SHIFT, Keys.TAB)
    page.switch_to.active_element.send_keys(Keys.ENTER)
    assert axis_titles(page, "x") == {"samples drawn"}
    first, second = ends(page)
    assert first == second
    page.find_element(By.CSS_SELECTOR, ".legend button").send_keys(Keys.ENTER)
    assert len(lines(page)) == len(ENTRIES) - 1
    assert page.get_log("browser") == []


def test_verdicts_are_in_words(page):
    cells = [cell.text for cell in page.find_elements(By.CSS_SELECTOR, "td[data-title=holds]")]
    assert cells == ["yes", "no"]
    assert (
        "1 of 2 claims hold as printed, 1 does not"
        in page.find_element(By.CSS_SELECTOR, "#claims ~ table caption").text
    )
    assert [cell.text for cell in page.find_elements(By.CSS_SELECTOR, "td[data-title=basis]")] == ["as printed"] * 2


@pytest.mark.by_default("320", "1200")
@pytest.mark.parametrize("width", [320, 390, 900, 1200])
def test_nothing_is_wider_than_the_screen(browser, file, width):
    open_at(browser, file, width)
    for details in browser.find_elements(By.TAG_NAME, "summary"):
        details.send_keys(Keys.ENTER)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    drawn = browser.execute_script(
        "return [...document.querySelectorAll('.main-svg')].map(e => e.getBoundingClientRect().right)"
    )
    assert 0 < max(drawn) <= width


def test_on_a_phone_pictures_keep_their_size_and_scroll_from_the_keyboard(browser, file):
    open_at(browser, file, 390)
    picture = browser.find_element(By.CSS_SELECTOR, ".picture")
    assert picture.find_element(By.TAG_NAME, "img").size["width"] > 700 > picture.size["width"]
    picture.send_keys(Keys.ARROW_RIGHT)
    WebDriverWait(browser, 5).until(lambda _: browser.execute_script("return arguments[0].scrollLeft", picture) > 0)


def test_on_a_phone_every_cell_shows_its_title(browser, file):
    open_at(browser, file, 390)
    cell = browser.find_element(By.CSS_SELECTOR, "td[data-title=holds]")
    title = browser.execute_script("return getComputedStyle(arguments[0], '::before').content", cell)
    assert "holds" in title or "attr(data-title)" in title
    assert cell.value_of_css_property("display") == "block"


def test_on_paper_the_curves_have_the_width_of_their_column(page):
    page.execute_script(
        "addEventListener('beforeprint', () => { window.printed = document.querySelector('.main-svg').clientWidth })"
    )
    pdf = page.execute_cdp_cmd("Page.printToPDF", {"preferCSSPageSize": True})
    assert len(pdf["data"]) > 10_000
    assert page.execute_script("return window.printed") == 340
    assert page.find_element(By.CSS_SELECTOR, ".main-svg").size["width"] != 340


def test_the_page_describes_the_tuning_and_the_versions(file):
    text = file.read_text(encoding="utf-8")
    for text_on_page in (
        "7 steps",
        "3 final seeds",
        "2 for every method",
        "1000003",
        "the smallest objective at the end",
    ):
        assert text_on_page in text
    assert "jax</td>" in text
    assert tr.__version__ in text


def test_a_report_has_less_than_two_megabytes(file):
    assert file.stat().st_size < 2_000_000


def test_a_report_without_paper_and_claims_begins_with_the_best_curve(tmp_path):
    found = outcome(tmp_path)
    experiment = replace(found.experiment, paper="", about="Compared by `tightrope compare`.")
    runs = {name: {label: run | {"note": ""} for label, run in part.items()} for name, part in found.runs.items()}
    text = report.page(replace(found, experiment=experiment, checks=[], runs=runs), {})
    assert "<p>All runs took " in text
    assert '<p class="verdict">one: lowest objective with a violation of at most ' in text
    assert "Compared by <code>tightrope compare</code>." in text
    assert "source of the settings" not in text  # a column without entries


def test_the_page_mentions_grids_of_different_sizes(tmp_path):
    found = outcome(tmp_path)
    part = found.parts["one"]
    unequal = replace(part, entries=(replace(part.entries[0], grid=part.entries[0].grid[:1]), part.entries[1]))
    text = report.page(replace(found, parts={"one": unequal}), {})
    assert "not equally many: first: 1" in text


def test_numbers_that_are_not_finite_are_left_out_of_the_curves(tmp_path):
    found = outcome(tmp_path)
    found.frames["one"].loc[found.frames["one"]["seed"] == 0, "objective"] = np.inf
    found.frames["one"].loc[found.frames["one"]["entry"] == "first", "stationarity"] = np.nan
    text = report.page(found, {})
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])
    objective, _, stationarity = data[0]["panels"]
    assert objective["curves"][0]["mean"][0] == pytest.approx(1.15)
    assert stationarity["curves"][0]["mean"] == []
    assert len(stationarity["curves"][1]["mean"]) == 8


def summarized(*checks: Check) -> str:
    experiment = Experiment("tiny", "A title", "paper 0", "", lambda quick: [], lambda runs: [])
    report = {"versions": {"jax": "1"}, "seconds": 12, "checks": [asdict(check) for check in checks]}
    return summary.markdown_summary({"tiny": (experiment, report)})


def test_the_summary_lists_every_claim_with_its_basis_and_explains_those_that_do_not_hold():
    text = summarized(
        Check("a | b", 1234.5, True, "by counting", why="not needed"),
        Check("c", [0.1, 0.2], False, "by counting", basis="tuned", why="too short"),
    )
    assert "| a \\| b | as printed | 1,234 | yes |" in text
    assert "| c | tuned | 0.1, 0.2 | **no** |" in text
    assert "- c (tuned). too short" in text
    assert "not needed" not in text
    assert "by counting" not in text


def test_the_summary_gives_a_reason_once():
    text = summarized(*(Check(claim, 0, False, basis="ours", why="the same reason") for claim in ("a", "b")))
    assert "- a (ours); b (ours). the same reason" in text
    assert text.count("the same reason") == 1


def test_each_claim_of_a_paper_is_counted_once_and_ours_not_at_all():
    found = [
        Check("holds as printed", 0, True),
        Check("holds as printed", 0, False, basis="tuned"),
        Check("holds tuned", 0, False),
        Check("holds tuned", 0, True, basis="tuned"),
        Check("never holds", 0, False),
        Check("never holds", 0, False, basis="tuned"),
        Check("never tried as printed", 0, False, basis="tuned"),
        Check("ours", 0, True, basis="ours"),
        Check("ours, too", 0, False, basis="ours"),
    ]
    assert verdicts.tally(found) == verdicts.Tally(printed=1, tuned=1, failed=2, ours=2, ours_held=1)
    assert "| tiny | 4 | 1 | 1 | 2 | 2 (1) |\n| **all** | 4 | 1 | 1 | 2 | 2 (1) |" in summarized(*found)
    sentence = "1 of 4 claims hold as printed, 1 only with tuned constants, 2 do not. Of 2 checks of our own, 1 holds."
    assert sentence in summarized(*found)


def test_an_unknown_basis_is_refused():
    with pytest.raises(ValueError, match="basis must be one of"):
        Check("a", 0, True, basis="guessed")  # pyright: ignore[reportArgumentType]
