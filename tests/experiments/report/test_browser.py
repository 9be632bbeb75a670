"""Reports as a reader meets them: in a real browser, at several widths, light and dark, without scripts, on paper."""

import io
import os
import shutil

import pytest
from PIL import Image

from experiments.report.overview import write_overview
from experiments.studies.registry import STUDIES

pytestmark = pytest.mark.slow

AFTER, LONG, FAILED = "favor+-rope-after", "favor+-rope-after@redraw_every=100", "softmax-rope"
VARIANTS = f"softmax-none,{FAILED},favor+-none,{AFTER},{LONG}"
DESK, TELEPHONE = {"width": 1280, "height": 800}, {"width": 400, "height": 800}
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

    def request(asked):
        if not asked.url.startswith(("file:", "data:", "blob:")):
            wrong.append(asked.url)

    def say(message):
        if message.type in ("warning", "error"):
            wrong.append(message.text)

    def open_page(path, **settings):
        context = browser.new_context(**{"viewport": DESK} | settings)
        contexts.append(context)
        context.on("request", request)
        context.on("console", say)
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


def visible_bottom(page, selector):
    box = box_of(page, selector)
    return box["y"] + box["height"]


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
    """A computed colour, 0 to 1 for each channel."""
    text = page.locator(selector).first.evaluate(f"element => getComputedStyle(element).{what}")
    return [int(part) / 255 for part in text[text.index("(") + 1 : -1].split(",")[:3]]


def luminance(channels):
    """As WCAG 2 defines it."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def hex_colour(text):
    return [int(text[place : place + 2], 16) / 255 for place in (1, 3, 5)]


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
    places = [box_of(page, selector)["y"] for selector in ("h1", ".answer", figure, "#table h2")]
    assert places == sorted(places)
    for selector in ("h1", ".answer", figure):
        assert visible_bottom(page, selector) <= DESK["height"], selector
    assert box_of(page, figure)["height"] > 200
    assert page.locator(".still").is_visible() != scripts
    assert page.locator("#live").is_visible() == scripts


@pytest.mark.parametrize("width", [400, 800, 1280])
@pytest.mark.parametrize("name", ["index.html", "convergence/report.html", "one/report.html"])
def test_nothing_sticks_out_at_the_side(overview, read, name, width):
    # But pictures within what scrolls.
    page = read(overview.parent / name, viewport={"width": width, "height": 800})
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    out = page.evaluate(
        "width => [...document.body.querySelectorAll(':not(.scrolled *)')].filter(each => {"
        " const box = each.getBoundingClientRect(); return box.width && (box.right > width + 0.5 || box.left < -0.5)"
        "}).map(each => each.outerHTML.slice(0, 200))",
        width,
    )
    assert out == []


@pytest.mark.parametrize("viewport", [DESK, TELEPHONE])
def test_pictures_keep_their_proportions(report, read, viewport):
    page = read(report, java_script_enabled=False, viewport=viewport)
    sizes = page.locator("img").evaluate_all(
        "all => all.map(i => [i.clientWidth / i.clientHeight, i.naturalWidth / i.naturalHeight])"
    )
    assert len(sizes) > 4
    for shown, natural in sizes:
        assert shown == pytest.approx(natural, rel=0.02)


def test_a_line_is_switched_off_and_on(report, read):
    page = read(report)
    before = drawing(page)
    box = page.get_by_role("checkbox", name=LONG)
    box.uncheck()
    hidden = drawing(page)
    assert hidden != before
    box.check()
    assert drawing(page) == before
    page.get_by_role("button", name="none").click()
    nothing = drawing(page)
    assert nothing not in (before, hidden)
    page.get_by_role("button", name="all").click()
    assert drawing(page) == before


def test_the_axis_is_steps_tokens_or_seconds_as_far_as_they_are_recorded(report, read):
    page = read(report)
    assert page.locator("input[name=axis]").evaluate_all("all => all.map(each => each.value)") == list(AXES)
    seen = {}
    for value, label in AXES.items():
        page.locator(f"input[name=axis][value={value}]").check()
        seen[value] = drawing(page)
        assert page.evaluate(f"{PLOT}.below[0].axis_label") == label
    assert page.evaluate(f"{PLOT}.x_range.end") == 100 * 2 * 32
    assert seen["step"] != seen["tokens"]
    page.locator("input[name=split][value=train]").check()
    assert drawing(page) != seen["tokens"]
    assert page.evaluate(f"{PLOT}.left[0].axis_label").startswith("training ")


def test_hovering_shows_the_name_and_the_values_of_a_line(report, read):
    page = read(report)
    page.get_by_role("button", name="none").click()
    page.get_by_role("checkbox", name=LONG).check()
    drawing(page)
    box, tooltip = box_of(page, "#plot"), page.locator("#plot output:visible")
    for y in range(10, int(box["height"]) - 40, 3):
        page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + y)
        page.wait_for_timeout(60)
        if tooltip.count():
            break
    said = " ".join(tooltip.all_inner_texts())
    assert LONG in said
    assert FAILED not in said
    assert "mean" in said


def test_dark_pages_are_dark_and_can_be_read(report, overview, read):
    for path in (overview, report):
        page = read(path, color_scheme="dark")
        paper = colour(page, "body", "backgroundColor")
        assert luminance(paper) < 0.03
        for selector in ("body", "h1", ".muted", "a", "td small", ".failure"):
            if page.locator(selector).count():
                assert contrast(colour(page, selector, "color"), paper) >= 4.5, selector
    with Image.open(io.BytesIO(drawing(page))) as picture:
        assert sum(picture.convert("RGB").getpixel((5, 5))) < 120
    drawn, given = line_colours(page)
    assert drawn == {name: colours["dark"] for name, colours in given.items()}
    for name, colours in given.items():
        assert contrast(hex_colour(colours["dark"]), paper) >= 3, name
        assert contrast(hex_colour(colours["light"]), [1, 1, 1]) >= 3, name
    page.emulate_media(color_scheme="light")
    drawing(page)
    drawn, given = line_colours(page)
    assert drawn == {name: colours["light"] for name, colours in given.items()}
    assert luminance(colour(page, "body", "backgroundColor")) > 0.9


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_paper_is_white_and_has_the_picture_in_place_of_the_interactive_figure(report, read, scheme):
    page = read(report, color_scheme=scheme)
    page.emulate_media(media="print", color_scheme=scheme)
    assert page.locator(".still").is_visible()
    assert not page.locator("#live").is_visible()
    assert not page.locator("nav").is_visible()
    assert luminance(colour(page, "body", "backgroundColor")) == pytest.approx(1)
    assert contrast(colour(page, "body", "color"), [1, 1, 1]) > 10
    assert page.locator(".still img").evaluate("image => getComputedStyle(image).filter") == "none"
    assert page.locator("details li").first.is_visible()
    page.set_viewport_size({"width": 600, "height": 800})  # paper is narrow, and no telephone
    assert page.locator(".wide thead").first.is_visible()
    assert page.pdf().startswith(b"%PDF")


def test_a_click_on_a_question_leads_to_its_report(overview, read):
    page = read(overview)
    assert page.locator("article").count() == 2
    assert page.locator("article svg polyline").count() >= 2
    page.locator("article h2 a").first.click()
    page.wait_for_selector("#live[data-ready]")
    assert page.locator("nav strong").inner_text() == "convergence"
