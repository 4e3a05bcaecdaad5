"""The page in a real browser: drop, tag, evidence, yes and no, undo, batches, downloads, dark, phone, keyboard."""

import base64
import contextlib
import csv
import io
import json
import os
import re
import shutil
import time
import zipfile
from pathlib import Path

import pytest
from conftest_of_serving import CLASSES, running

from contextcaps.serving.config import ServeConfig
from contextcaps.serving.opening import engine_of

webdriver = pytest.importorskip("selenium.webdriver")
By = pytest.importorskip("selenium.webdriver.common.by").By
Keys = pytest.importorskip("selenium.webdriver.common.keys").Keys

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(CHROMIUM is None or DRIVER is None, reason="needs chromium and chromium-driver"),
]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Chromium without a window; what it downloads lies in `browser.downloads`."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "window-size=1300,900"):
        options.add_argument(f"--{flag}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with contextlib.closing(open(os.devnull, "wb")) as nowhere:
        service = webdriver.ChromeService(DRIVER, log_output=nowhere)
        found = webdriver.Chrome(options=options, service=service)
    found.downloads = tmp_path_factory.mktemp("downloads")
    found.execute_cdp_cmd("Browser.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(found.downloads)})
    yield found
    found.quit()


@pytest.fixture(scope="module")
def served(engine):
    """A server of two models, the second of which can be told nothing."""
    import torch

    import contextcaps
    from contextcaps.tagging.tagger import Tagger

    torch.manual_seed(1)
    plain = Tagger(contextcaps.create_model("gap", 5, 32, "small", class_names=CLASSES))
    engines = {"kitchens": engine, "plain": engine_of("plain", plain)}
    with running(ServeConfig(model=("kitchens=unused", "plain=unused")), engines) as found:
        yield found


class Page:
    """The page, and what a person does with it."""

    def __init__(self, browser, address: str) -> None:
        self.browser, self.address = browser, address
        browser.get("about:blank")
        browser.get(address)
        self.until(lambda: self.run("return document.body.dataset.ready"))

    def run(self, script: str, *values):
        return self.browser.execute_script(script, *values)

    def all(self, selector: str):
        return self.browser.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str):
        return self.browser.find_element(By.CSS_SELECTOR, selector)

    def texts(self, selector: str) -> list[str]:
        return self.run("return [...document.querySelectorAll(arguments[0])].map(each => each.textContent)", selector)

    def drop(self, photographs, event: str = "drop") -> None:
        """Let files fall on the page, as a person does from a folder, or paste them."""
        files = [(f"{place}.jpg", base64.b64encode(content).decode()) for place, content in enumerate(photographs)]
        self.run(
            """const transfer = new DataTransfer();
            for (const [name, text] of arguments[0]) {
              const bytes = Uint8Array.from(atob(text), (each) => each.charCodeAt(0));
              transfer.items.add(new File([bytes], name, {type: "image/jpeg"}));
            }
            document.body.dispatchEvent(arguments[1] === "drop"
              ? new DragEvent("drop", {dataTransfer: transfer, bubbles: true})
              : new ClipboardEvent("paste", {clipboardData: transfer, bubbles: true}));""",
            files,
            event,
        )
        self.until(
            lambda: "tagged" in self.one("#progress-says").text and " of " not in self.one("#progress-says").text
        )
        self.until(lambda: self.all(".tag") or self.texts("#tags .heading") == ["damaged"])

    def scores(self) -> dict[str, str]:
        rows = self.run(
            """return [...document.querySelectorAll(".tag")].map((row) =>
            [row.dataset.name, row.querySelector(".score").lastChild.textContent])"""
        )
        return dict(rows)

    def answer(self, name: str, word: str) -> None:
        """Press Yes or No of a class, and wait for what moves."""
        before = self.scores()
        self.run("document.querySelector(`.tag[data-name='${arguments[0]}'] .${arguments[1]}`).click()", name, word)
        self.until(lambda: self.scores() != before and self.one("#tags").get_attribute("aria-busy") == "false")

    def until(self, is_true) -> None:
        end = time.monotonic() + 20
        while not is_true():
            assert time.monotonic() < end, self.browser.get_log("browser")
            time.sleep(0.02)


@pytest.fixture
def page(browser, served):
    found = Page(browser, served.address)
    found.browser.get_log("browser")
    yield found
    # The browser itself notes each answer that is no success.
    complaints = [line["message"] for line in browser.get_log("browser")]
    assert [each for each in complaints if "Failed to load resource" not in each] == []


def expected(engine, photograph, known):
    (tagging,) = engine.tagger.tag(photograph, known=known)
    return {
        name: ("yes" if known[name] else "no") if name in known else f"{float(score):.2f}"
        for name, score in zip(CLASSES, tagging.scores, strict=True)
    }


def test_tags_evidence_answers_and_undo(page, engine, photographs) -> None:
    page.drop(photographs[:1])
    plain = expected(engine, photographs[0], {})
    assert page.scores() == plain
    tags = [tag.name for tag in engine.tagger.tag(photographs[0])[0].tags]
    assert page.texts(".tag:not(.low) .name") == tags

    name = next(iter(page.scores()))
    webdriver.ActionChains(page.browser).move_to_element(page.one(".tag")).perform()
    page.until(lambda: page.one("#evidence").is_displayed())
    assert page.one("#why").text.startswith(f"{name} {plain[name]}")
    over = page.run("const e = document.getElementById('evidence'); return [e.clientWidth, e.width, e.height]")
    cells = engine.tagger.explain(photographs[0], [name]).classes[0].heat_map().shape
    height = page.run("return document.getElementById('evidence').clientHeight")
    assert over[0] / height == pytest.approx(60 / 50, abs=0.02)  # as the photograph
    assert (over[2], over[1]) == cells

    page.answer("oven", "yes")
    assert page.scores() == expected(engine, photographs[0], {"oven": True})
    assert "through oven" in page.texts("#moves li")[0]
    assert "through oven" in page.texts(".tag .through")
    page.answer("bed", "no")
    told = expected(engine, photographs[0], {"oven": True, "bed": False})
    assert page.scores() == told
    page.answer("oven", "yes")  # once more: it is taken back
    assert page.scores() == expected(engine, photographs[0], {"bed": False})
    page.one("#undo").click()
    page.until(lambda: page.scores() == told)
    page.one("#undo").click()
    page.until(lambda: page.scores() == expected(engine, photographs[0], {"oven": True}))
    webdriver.ActionChains(page.browser).key_down(Keys.CONTROL).send_keys("z").key_up(Keys.CONTROL).perform()
    page.until(lambda: page.scores() == plain)
    assert not page.one("#undo").is_enabled()


def test_a_search_the_threshold_and_a_question(page, engine, photographs) -> None:
    page.drop(photographs[:1], "paste")
    page.one("#search").send_keys("FOLD")
    assert page.texts(".tag .name") == ["chair, folding"]
    page.one("#search").clear()
    page.one("#search").send_keys("zebra")
    assert page.texts("#tags li") == ["No class has such a name"]
    page.run("search.value = ''; search.dispatchEvent(new Event('input'))")
    page.run("threshold.value = 99; threshold.dispatchEvent(new Event('input'))")
    assert page.texts(".tag:not(.low)") == []
    assert page.one("#threshold-says").text == "0.99 for all"
    page.run("threshold.value = 0; threshold.dispatchEvent(new Event('input'))")
    page.one("#ask").click()
    page.until(lambda: page.all("#question p"))
    asked = re.match(r"Is there: (.+)\? The answer", page.one("#question p").text)[1]
    page.run("document.querySelector('#question button').click()")
    page.until(lambda: page.scores().get(asked) == "yes")
    page.until(lambda: f"Is there: {asked}?" not in page.one("#question").text and page.all("#question p"))


def test_many_photographs(page, engine, photographs) -> None:
    page.drop([*photographs, b"no photograph"])
    assert page.one("#progress-says").text == "7 tagged, 1 cannot be read"
    assert len(page.all("#grid li")) == 8
    options = page.texts("#filter option")
    most, count = re.fullmatch(r"(.+) \((\d+)\)", options[1]).groups()
    page.run("filter.value = arguments[0]; filter.dispatchEvent(new Event('change'))", most)
    assert len(page.all("#grid li")) == int(count)
    names = page.run(
        "return [...document.querySelectorAll('#grid button')].map((each) => each.ariaLabel.split(':')[0])"
    )
    while page.one("#next").is_enabled():
        page.one("#next").click()
    assert page.one("#photo-name").text == names[-1]  # from one that is shown to the next
    page.run("filter.value = ''; filter.dispatchEvent(new Event('change'))")
    page.one("#grid button").click()
    page.one("#batch-class").send_keys("car")
    page.one("#batch-yes").click()
    page.until(lambda: "car (7)" in page.texts("#filter option"))
    page.one("#undo").click()
    page.until(lambda: "car (7)" not in page.texts("#filter option"))
    page.one("#batch-no").click()
    page.until(lambda: not any(each.startswith("car (") for each in page.texts("#filter option")))
    page.until(lambda: page.scores().get("car") == "no")
    page.until(lambda: page.one("#album").get_attribute("aria-busy") == "false")
    files = {}
    for kind, name in (("jsonl", "tags.jsonl"), ("csv", "tags.csv"), ("xmp", "sidecars.zip")):
        page.one(f"[data-download={kind}]").click()
        path = page.browser.downloads / name
        page.until(path.exists)
        page.until(lambda path=path: path.stat().st_size > 0)
        files[kind] = path.read_bytes()
        path.unlink()
    rows = [json.loads(line) for line in files["jsonl"].splitlines()]
    taggings = engine.tagger.tag(photographs, known={"car": False})
    assert [row["image"] for row in rows] == [f"{place}.jpg" for place in range(8)]
    for row, tagging in zip(rows, taggings, strict=False):
        assert [tag["name"] for tag in row["tags"]] == [tag.name for tag in tagging.tags]
        assert row["given"] == {"car": False}
    assert "error" in rows[7]
    table = list(csv.DictReader(io.StringIO(files["csv"].decode())))
    assert table[0]["tags"] == "; ".join(tag.name for tag in taggings[0].tags)
    with zipfile.ZipFile(io.BytesIO(files["xmp"])) as sidecars:
        for place, tagging in enumerate(taggings):
            if tagging.tags:
                text = sidecars.read(f"{place}.jpg.xmp").decode()
                assert re.findall(r"<rdf:li[^>]*>([^<]+)", text) == [tag.name for tag in tagging.tags]


def test_the_keyboard_alone(page, photographs) -> None:
    page.drop(photographs[:2])
    press = lambda *keys: webdriver.ActionChains(page.browser).send_keys(*keys).perform()  # noqa: E731
    press(Keys.ARROW_DOWN)
    name = page.run("return document.activeElement.closest('.tag').dataset.name")
    press("y")
    page.until(lambda: page.scores().get(name) == "yes")
    assert page.run("return document.activeElement.closest('.tag').dataset.name") == name
    press(Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_UP, "n")
    page.until(lambda: "no" in page.scores().values())
    press("/")
    assert page.run("return document.activeElement.id") == "search"
    press("fold", Keys.ARROW_DOWN)
    assert page.run("return document.activeElement.closest('.tag').dataset.name") == "chair, folding"
    press("/")
    page.one("#search").clear()
    press(Keys.TAB, Keys.ARROW_RIGHT)
    page.until(lambda: page.one("#photo-name").text == "1.jpg")
    press(Keys.ARROW_LEFT)
    page.until(lambda: page.one("#photo-name").text == "0.jpg")


def test_another_model(page, photographs) -> None:
    page.drop(photographs[:1])
    page.answer("car", "no")
    page.run("model.value = 'plain'; model.dispatchEvent(new Event('change'))")
    page.until(lambda: len(page.scores()) == 5 and page.one("#question").get_attribute("hidden") is not None)
    before = page.scores()
    assert before["car"] == "no"  # what was said stays
    page.answer("oven", "yes")  # noted, but it moves nothing
    assert {**before, "oven": "yes"} == page.scores()


def test_what_the_server_has_forgotten_is_sent_again(page, served, engine, photographs) -> None:
    page.drop(photographs[:1])
    served.service.kept.__init__(2**20)
    page.answer("oven", "yes")
    assert page.scores() == expected(engine, photographs[0], {"oven": True})
    assert any("404" in line["message"] for line in page.browser.get_log("browser"))  # the browser's note of it


def test_dark_and_narrow(page, photographs) -> None:
    page.drop(photographs[:3])
    ground = lambda: page.run("return getComputedStyle(document.body).backgroundColor")  # noqa: E731
    light = ground()
    page.browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    )
    assert ground() != light
    page.one("#theme").click()
    assert ground() == light
    page.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": []})
    page.run("localStorage.clear(); delete document.documentElement.dataset.theme")
    try:
        for width in (320, 390, 820):
            metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": True}
            page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            assert page.run("return document.documentElement.scrollWidth") <= width
            sides = page.run(
                "return [...document.querySelectorAll('.answers button')].map((each) => each.clientHeight)"
            )
            assert min(sides) >= 38
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_nothing_comes_from_elsewhere(page, served, photographs) -> None:
    page.drop(photographs[:1])
    addresses = page.run("return performance.getEntriesByType('resource').map((each) => each.name)")
    assert addresses
    assert all(each.startswith((served.address, "blob:")) for each in addresses)
    page.browser.get(f"{served.address}/docs")
    page.until(lambda: page.one("#routes").get_attribute("aria-busy") == "false")
    assert "POST /v1/tag" in page.texts("h2")


def test_a_token_in_the_address_and_in_the_dialog(browser, engine, photographs) -> None:
    with running(ServeConfig(model=("kitchens=unused",), token="open sesame"), {"kitchens": engine}) as client:
        page = Page(browser, f"{client.address}/#token=open%20sesame")
        assert "token" not in page.browser.current_url
        page.run("sessionStorage.clear()")
        browser.get("about:blank")
        browser.get(client.address)
        page.until(lambda: page.run("return document.getElementById('secret')?.open"))
        page.one("#token").send_keys("open sesame", Keys.ENTER)
        page.until(lambda: page.run("return document.body.dataset.ready"))
        page.drop(photographs[:1])
    browser.get_log("browser")


def test_a_screen_reader_finds_its_way(page, photographs) -> None:
    """axe-core finds nothing: `npm install --no-save axe-core` puts it where it is looked for."""
    script = ROOT / "node_modules/axe-core/axe.min.js"
    if not script.is_file():
        pytest.skip("needs axe-core: npm install --no-save axe-core")

    def is_clean(state: str) -> None:
        for theme in ("light", "dark"):
            page.run("document.documentElement.dataset.theme = arguments[0]", theme)
            time.sleep(0.4)  # colours glide
            page.run(script.read_text())
            found = page.browser.execute_async_script(
                """axe.run(document).then((found) => arguments[0](
                found.violations.map((each) => [each.impact, each.id, each.nodes.map((node) => node.html)])))"""
            )
            assert not found, (state, theme, found)

    is_clean("nothing")
    page.drop(photographs[:1])
    is_clean("tags")
    webdriver.ActionChains(page.browser).move_to_element(page.one(".tag")).perform()
    page.until(lambda: page.one("#evidence").is_displayed())
    is_clean("evidence")
    page.answer("oven", "yes")
    page.one("#ask").click()
    page.until(lambda: page.all("#question p"))
    is_clean("an answer and a question")
    page.drop([*photographs, b"no photograph"])
    page.one("#batch-yes").click()  # without a class: a message
    is_clean("many, and a message")
    page.run("secret.showModal()")
    is_clean("the dialog")
    page.run("secret.close()")
    metrics = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": True}
    page.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    try:
        is_clean("a phone")
    finally:
        page.browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.run("delete document.documentElement.dataset.theme")
    page.browser.get(f"{page.address}/docs")
    page.until(lambda: page.one("#routes").get_attribute("aria-busy") == "false")
    is_clean("the reference")
