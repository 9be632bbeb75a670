"""Reports as a reader meets them: in a real browser, at several widths, light and dark, without scripts, on paper."""

import io
import os
import shutil

import pytest
from PIL import Image

from experiments.report.overview import write_overview
from experiments.show.colours import contrast, luminance
from experiments.studies.registry import STUDIES

pytestmark = pytest.mark.slow

AFTER, LONG, FAILED = "favor+-rope-after", "favor+-rope-after@redraw_every=100", "softmax-rope"
VARIANTS = f"softmax-none,{FAILED},favor+-none,{AFTER},{LONG}"
DESK = {"width": 1280, "height": 800}
AXES = {"step": "optimiser steps", "tokens": "tokens of training"}
PLOT = "Bokeh.documents[0].roots()[0]"


@pytest.fixture(scope="module")
def browser():
    lacks = pytest.fail if os.environ.get("LINEAR_ROPE_BROWSER") == "required" else pytest.skip
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        lacks("playwright is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        lacks("there is no chromium")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium)
        yield started
        started.close()


@pytest.fixture(scope="module")
def overview(make_comparison, tmp_path_factory):
    """The page over two comparisons: one with a failed run and long names, one of a single variant and seed."""
    root = tmp_path_factory.mktemp("results")
    fates = {(FAILED, 1): ("failed", "the loss was not finite at step 40")}
    make_comparison(root / "convergence", VARIANTS, name="convergence", fates=fates)
    make_comparison(root / "one", "elu+1-none", 1, name="one")
    return write_overview(root, STUDIES, lambda _: None)


@pytest.fixture(scope="module")
def report(overview):
    return overview.parent / "convergence" / "report.html"


@pytest.fixture
def read(browser):
    """Opens a page with the given settings of the browser. Complaints and requests to a network fail the test."""
    contexts, wrong = [], []

    def open_page(path, **settings):
        context = browser.new_context(**{"viewport": DESK} | settings)
        contexts.append(context)
        inside = ("file:", "data:", "blob:")
        context.on("request", lambda asked: asked.url.startswith(inside) or wrong.append(asked.url))
        context.on("console", lambda said: said.type in ("warning", "error") and wrong.append(said.text))
        context.on("weberror", lambda error: wrong.append(str(error.error)))
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.goto(path.as_uri())
        if path.name == "report.html" and settings.get("java_script_enabled", True):
            page.wait_for_selector("#live[data-ready]")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def box_of(page, selector):
    return page.locator(selector).bounding_box()


def drawing(page):
    """The interactive figure as it is seen, once it does not change any more."""
    last = b""
    for _ in range(40):
        seen = page.locator("#plot").screenshot()
        if seen == last:
            return seen
        last = seen
        page.wait_for_timeout(150)
    raise AssertionError("the figure does not come to rest")


def colour(page, selector, what):
    """A computed colour as ``#rrggbb``."""
    text = page.locator(selector).first.evaluate(f"element => getComputedStyle(element).{what}")
    return "#" + "".join(f"{int(part):02x}" for part in text[text.index("(") + 1 : -1].split(",")[:3])


def line_colours(page):
    boxes = page.locator("#lines input").evaluate_all("boxes => boxes.map(box => [box.value, {...box.dataset}])")
    drawn = {
        name: page.evaluate(f"{PLOT}.document.get_model_by_name({name!r}).glyph.line_color.value") for name, _ in boxes
    }
    return drawn, dict(boxes)


@pytest.mark.parametrize("scripts", [True, False])
@pytest.mark.parametrize("name", ["convergence", "one"])
def test_the_first_screen_holds_question_answer_and_main_figure(overview, read, name, scripts):
    page = read(overview.parent / name / "report.html", java_script_enabled=scripts)
    figure = "#plot" if scripts else ".still img"
    boxes = [box_of(page, selector) for selector in ("h1", ".answer", figure, "#table h2")]
    assert [box["y"] for box in boxes] == sorted(box["y"] for box in boxes)
    assert max(box["y"] + box["height"] for box in boxes[:3]) <= DESK["height"]
    assert boxes[2]["height"] > 200
    assert (page.locator(".still").is_visible(), page.locator("#live").is_visible()) == (not scripts, scripts)


@pytest.mark.parametrize("name", ["index.html", "convergence/report.html", "one/report.html"])
def test_nothing_sticks_out_at_the_side_and_pictures_keep_their_proportions(overview, read, name):
    page = read(overview.parent / name)
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    for width in (400, 800, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        # What is drawn by scripts follows a little later.
        page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width)
        out = page.evaluate(  # but pictures within what scrolls
            "width => [...document.body.querySelectorAll(':not(.scrolled *)')].filter(each => {"
            " const box = each.getBoundingClientRect(); return box.width && (box.right > width + 1 || box.left < -1)"
            "}).map(each => each.outerHTML.slice(0, 200))",
            width,
        )
        assert out == []
        sizes = page.locator("img:visible").evaluate_all(
            "all => all.map(i => [i.clientWidth / i.clientHeight, i.naturalWidth / i.naturalHeight])"
        )
        assert all(shown == pytest.approx(natural, rel=0.02) for shown, natural in sizes)


@pytest.mark.parametrize("width", [400, 1280])
def test_a_table_is_sorted_by_a_column_and_filtered_by_words(report, read, width):
    page = read(report, viewport={"width": width, "height": 800})
    head = page.locator("#table th").nth(1)

    def names():
        return page.locator("#table tr:visible td:first-child").all_inner_texts()

    def values():
        return [float(cell.split()[0]) for cell in page.locator("#table td:nth-child(2)").all_inner_texts()]

    as_written = names()
    page.locator("#table select").select_option(index=2)
    assert values() == sorted(values())
    page.locator("#table button").click() if width < 800 else head.click()
    assert values() == sorted(values(), reverse=True)
    assert head.get_attribute("aria-sort") == "descending"
    page.locator("#table select").select_option(index=0)
    page.locator("#table input").fill("softmax")
    assert names() == [name for name in as_written if "softmax" in name] != as_written


def test_lines_and_axes_are_switched_and_hovering_shows_a_line_s_values(report, read):
    page = read(report)
    before = drawing(page)
    box = page.get_by_role("checkbox", name=LONG)
    box.uncheck()
    hidden = drawing(page)
    box.check()
    assert hidden != before == drawing(page)
    page.get_by_role("button", name="none").click()
    assert drawing(page) not in (before, hidden)

    box.check()
    drawing(page)
    place, tooltip = box_of(page, "#plot"), page.locator("#plot output:visible")
    for y in range(10, int(place["height"]) - 40, 3):
        page.mouse.move(place["x"] + place["width"] * 0.6, place["y"] + y)
        page.wait_for_timeout(60)
        if tooltip.count():
            break
    said = " ".join(tooltip.all_inner_texts())
    assert (LONG in said, FAILED in said, "mean" in said) == (True, False, True)
    page.mouse.move(0, 0)
    page.get_by_role("button", name="all").click()
    assert drawing(page) == before

    assert page.locator("input[name=axis]").evaluate_all("all => all.map(each => each.value)") == list(AXES)
    seen = []
    for value, label in AXES.items():
        page.locator(f"input[name=axis][value={value}]").check()
        seen.append(drawing(page))
        assert page.evaluate(f"{PLOT}.below[0].axis_label") == label
    assert page.evaluate(f"{PLOT}.x_range.end") == 100 * 2 * 32
    page.locator("input[name=split][value=train]").check()
    assert len({*seen, drawing(page)}) == 3
    assert page.evaluate(f"{PLOT}.left[0].axis_label").startswith("training ")


def test_dark_pages_are_dark_and_can_be_read_and_paper_is_white(report, overview, read):
    for path in (overview, report):
        page = read(path, color_scheme="dark")
        paper = colour(page, "body", "backgroundColor")
        assert luminance(paper) < 0.03
        for selector in ("body", "h1", ".muted", "a", "td small", ".failure"):
            if page.locator(selector).count():
                assert contrast(colour(page, selector, "color"), paper) >= 4.5, selector
    with Image.open(io.BytesIO(drawing(page))) as picture:
        assert sum(picture.convert("RGB").getpixel((5, 5))) < 120
    for scheme, background in (("dark", paper), ("light", "#ffffff")):
        page.emulate_media(color_scheme=scheme)
        drawing(page)
        drawn, given = line_colours(page)
        assert drawn == {name: colours[scheme] for name, colours in given.items()}
        assert all(contrast(each, background) >= 3 for each in drawn.values())
    assert luminance(colour(page, "body", "backgroundColor")) > 0.9
    for scheme in ("light", "dark"):
        page.emulate_media(media="print", color_scheme=scheme)
        seen = {each: page.locator(each).first.is_visible() for each in (".still", "#live", "nav", "details li")}
        assert seen == {".still": True, "#live": False, "nav": False, "details li": True}
        assert luminance(colour(page, "body", "backgroundColor")) == pytest.approx(1)
        assert contrast(colour(page, "body", "color"), "#ffffff") > 10
        assert page.locator(".still img").evaluate("image => getComputedStyle(image).filter") == "none"
    page.set_viewport_size({"width": 600, "height": 800})  # paper is narrow, and no telephone
    assert page.locator(".wide thead").first.is_visible()
    assert page.pdf().startswith(b"%PDF")


def test_a_click_on_a_question_leads_to_its_report(overview, read):
    page = read(overview)
    assert page.locator("article").count() == 2
    assert page.locator("article img").count() == 2
    page.locator("article h2 a").first.click()
    page.wait_for_selector("#live[data-ready]")
    assert page.locator("nav strong").inner_text() == "convergence"
