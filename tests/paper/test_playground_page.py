"""The playground in a browser: by keyboard, by mouse, and for those who hear it."""

import re
import shutil
import subprocess

import pytest

from noisescale.noise.recipe import Recipe
from noisescale.paper import SECTIONS
from noisescale.paper.report import render
from noisescale.paper.report.playground import DEFAULTS, playground_page
from noisescale.paper.report.playground.law import STEPS
from noisescale.paper.stages import full_scale, verdicts_of

RECIPE = Recipe(
    learning_rate=DEFAULTS["learningRate"],
    batch_size=DEFAULTS["batchSize"],
    momentum=DEFAULTS["momentum"],
    n_train=DEFAULTS["nTrain"],
)
IDLE = "part('pause').ariaDisabled === 'true' && part('waiting').textContent === ''"


class Hands:
    """The page as a reader uses it: with keys, with the mouse, and by what it says."""

    def __init__(self, browser):
        self.browser = browser

    def ask(self, expression):
        part = "const part = (name) => document.getElementById(`playground-${name}`);"
        return self.browser.run(f"(() => {{ {part} return {expression}; }})()")

    def text(self, name):
        return self.ask(f"part('{name}').textContent")

    def wait(self, condition=IDLE):
        """Until it holds; looked at whenever something on the page changes."""
        self.ask(
            f"""new Promise((done) => {{
            const look = () => {{ if ({condition}) {{ watch.disconnect(); done(true); }} }};
            const watch = new MutationObserver(look);
            watch.observe(document.getElementById("playground"),
              {{ subtree: true, childList: true, characterData: true, attributes: true }});
            look();
            }})"""
        )

    def focus(self):
        return self.ask("document.activeElement.id").removeprefix("playground-")

    def tab_to(self, name):
        for _ in range(30):
            if self.focus() == name:
                return
            self.browser.press("Tab")
        pytest.fail(f"the Tab key does not lead to {name}")

    def drag_to(self, name, value):
        """Hold a slider's thumb and move it, from the left end, until it shows ``value``."""
        slider, mouse = f"part('{name}')", self.browser.mouse
        self.ask(f"{slider}.scrollIntoView({{ block: 'center', behavior: 'instant' }})")
        left, right, y, share = self.ask(
            f"(({{ left, right, top, height }}) => [left + 8, right - 8, top + height / 2, "
            f"{slider}.value / {slider}.max])({slider}.getBoundingClientRect())"
        )  # a thumb is 16 pixels wide
        mouse("mousePressed", (left + share * (right - left), y))
        x = left
        while self.text(f"{name}-value") != value and x <= right:
            mouse("mouseMoved", (x, y))
            x += 8  # less than from one of its 37 places to the next
        mouse("mouseReleased", (x - 8, y))
        assert self.text(f"{name}-value") == value

    def table(self):
        """Mean test accuracy in per cent by batch size."""
        rows = self.ask(
            "[...part('table').rows].map((row) => [...row.cells].map((c) => c.textContent))"
        )
        return {int(row[0]): float(row[-1].removesuffix(" %")) for row in rows}


@pytest.fixture
def hands(chromium, tmp_path):
    page = tmp_path / "playground.html"
    page.write_text(playground_page(), "utf-8")
    chromium.complaints.clear()
    chromium.requests.clear()
    chromium.prefer()
    chromium.resize(1000)
    chromium.open(page.as_uri())
    yield Hands(chromium)
    assert chromium.complaints == []
    assert chromium.requests == []


class TestInABrowser:
    def test_by_keyboard_alone(self, hands):
        press = hands.browser.press
        hands.tab_to("batchSize")
        press("Home")
        assert hands.text("batchSize-value") == "1"
        for _ in range(3):
            press("ArrowRight")
        assert hands.text("batchSize-value") == "4"
        assert hands.ask("part('batchSize').getAttribute('aria-valuetext')") == "4"
        hands.tab_to("run")
        press("Enter")
        hands.wait()
        said = hands.text("status")
        assert said.startswith("B = 4, ε = 0.2, m = 0.9, N = 1000: test accuracy")
        assert "1000 updates" in said
        assert list(hands.table()) == [4]
        hands.tab_to("metric")
        press("ArrowRight")
        assert hands.ask("part('metric').value") == "crossEntropy"
        assert hands.ask("part('curves').querySelectorAll('path.line').length") == 2

    def test_the_best_batch_size_is_found_by_dragging(self, hands):
        for size in ("8", "27", "91"):
            hands.drag_to("batchSize", size)
            for _ in range(2):
                hands.browser.click("#playground-run")
            hands.wait()
        accuracy = hands.table()
        assert list(accuracy) == [8, 27, 91]
        # The library's means are below 60, 86.4 and 84.6 %, with a standard deviation of half a per
        # cent for one run at the larger two.
        assert accuracy[27] > accuracy[91] > accuracy[8]
        assert "Best of 3 batch sizes so far: 27" in hands.text("status")
        best = re.match(r"[\d.]+ \[([\d.]+), ([\d.]+)\]", hands.text("best"))
        assert float(best[1]) < 27 < float(best[2])
        assert hands.ask("part('peak').querySelectorAll('.own').length") == 6

    def test_what_it_shows_is_what_the_library_says(self, hands):
        assert float(hands.text("g")) == float(f"{RECIPE.noise_scale:.3g}")
        assert hands.text("effective") == "2"
        assert float(hands.text("epochs")) == STEPS * RECIPE.batch_size / RECIPE.n_train

    def test_keeping_g_moves_the_partner(self, hands):
        hands.browser.click("#playground-keep")
        hands.tab_to("batchSize")
        hands.browser.press("ArrowLeft")
        moved = RECIPE.scaled_to(batch_size=int(hands.text("batchSize-value")), rule="linear")
        assert moved.batch_size < RECIPE.batch_size
        assert float(hands.text("learningRate-value")) == float(f"{moved.learning_rate:.3g}")
        assert float(hands.text("level")) == float(f"{RECIPE.kept('linear'):.3g}")
        assert hands.text("status").startswith(f"g is kept: B = {moved.batch_size}, ε = ")
        hands.tab_to("momentum")
        hands.browser.press("ArrowLeft")
        halved = moved.scaled_to(momentum=float(hands.text("momentum-value")), rule="linear")
        assert halved.batch_size < moved.batch_size
        assert abs(int(hands.text("batchSize-value")) - halved.batch_size) <= 1
        hands.browser.press("End")
        hands.tab_to("nTrain")
        hands.browser.press("Home")
        hands.tab_to("learningRate")
        for _ in range(40):
            hands.browser.press("ArrowRight")
        assert hands.text("status").startswith("Keeping g would need a batch size of")
        assert int(hands.text("batchSize-value")) <= 100

    def test_fewer_images_than_the_batch_make_it_smaller(self, hands):
        hands.tab_to("nTrain")
        hands.browser.press("Home")
        assert hands.text("nTrain-value") == hands.text("batchSize-value") == "100"
        assert hands.text("g") == "0"

    def test_a_sweep_pauses_goes_on_and_is_forgotten(self, hands):
        sizes = [2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128, 181, 256]
        hands.browser.click("#playground-sweep")
        hands.wait("part('table').rows.length >= 2")
        hands.browser.click("#playground-pause")
        hands.wait("part('status').textContent.startsWith('Paused after')")
        assert hands.text("pause") == "Continue"
        done = len(hands.table())
        assert hands.text("waiting") == f"{len(sizes) - done - 1} more to run"
        paused = hands.ask("part('progress').value")
        # Long enough for a run that went on to be seen.
        hands.ask("new Promise((done) => setTimeout(done, 500))")
        assert hands.ask("part('progress').value") == paused < 1
        hands.browser.click("#playground-pause")
        hands.wait(f"part('table').rows.length >= {done + 1}")
        known = list(hands.table())
        assert known == sizes[: len(known)]
        hands.browser.click("#playground-reset")
        assert hands.table() == {}
        assert hands.text("waiting") == ""
        assert hands.text("batchSize-value") == "128"
        assert hands.ask("part('pause').ariaDisabled") == "true"

    def test_those_who_asked_for_less_motion_see_the_curves_when_they_are_done(self, hands):
        for motion in ("reduce", "no-preference"):
            hands.browser.prefer(prefers_reduced_motion=motion)
            hands.browser.run(
                "(() => { window.drawn = 0; new MutationObserver(() => { window.drawn += 1; })"
                ".observe(document.getElementById('playground-curves'), { childList: true }); })()"
            )
            hands.tab_to("batchSize")
            hands.browser.press("Home")
            hands.browser.click("#playground-run")
            hands.wait()
            drawn = hands.browser.run("window.drawn")
            assert drawn == 1 if motion == "reduce" else drawn > 1

    @pytest.mark.parametrize("width", [320, 375, 960, 1440])
    def test_nothing_sticks_out_sideways(self, hands, width):
        hands.browser.resize(width)
        assert hands.browser.run("document.documentElement.scrollWidth") <= width

    def test_the_colours_follow_the_reader(self, hands):
        seen = set()
        for scheme in ("light", "dark"):
            hands.browser.prefer(prefers_color_scheme=scheme)
            seen.add(
                hands.browser.run(
                    "['body', '#playground svg text', '.controls'].map((name) => {"
                    "const s = getComputedStyle(document.querySelector(name));"
                    "return s.backgroundColor + s.fill; }).join()"
                )
            )
        assert len(seen) == 2

    def test_every_control_has_a_name_and_pictures_have_words(self, hands):
        nameless = hands.browser.run(
            "[...document.querySelectorAll('input, select, button, svg[role], canvas, progress')]"
            ".filter((e) => !(e.labels?.length || e.ariaLabel || e.textContent.trim()))"
            ".map((e) => e.id)"
        )
        assert nameless == []

    def test_inside_another_page_it_says_how_tall_it_is(self, hands, tmp_path):
        outer = tmp_path / "outer.html"
        outer.write_text(
            "<!DOCTYPE html><script>window.told = new Promise((done) => addEventListener('message',"
            "({ data }) => done(data.playgroundHeight)))</script>"
            "<iframe src='playground.html' style='width: 600px; height: 50px'></iframe>",
            "utf-8",
        )
        hands.browser.open(outer.as_uri())
        assert hands.browser.run("window.told") > 1_000


def axe_core(folder):
    """The accessibility checker's source, from the npm registry; a skip if it is out of reach."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("needs npm to fetch axe-core: install Debian's npm package")
    done = subprocess.run(
        [npm, "install", "--no-save", "--no-audit", "--prefix", folder, "axe-core@4"],
        capture_output=True,
        encoding="utf-8",
    )
    if done.returncode:
        pytest.skip(f"axe-core is out of reach: {done.stderr.strip().splitlines()[-1]}")
    return (folder / "node_modules" / "axe-core" / "axe.min.js").read_text("utf-8")


@pytest.mark.long
def test_axe_finds_nothing(chromium, tmp_path):
    """The playground and the whole report, light and dark, narrow and wide."""
    axe = axe_core(tmp_path)
    claims = {
        "version": "0",
        "scale": "smoke",
        "seeds": 1,
        "seconds": 1.0,
        **verdicts_of({}),
        "data": {"name": "x", "source": "x", "complete": False, "fingerprint": "x"},
    }
    full = full_scale()
    pages = {
        "playground": playground_page(),
        "report": render(claims, {}, full, verdicts_of(full), SECTIONS.values(), ""),
    }
    for name, content in pages.items():
        (tmp_path / f"{name}.html").write_text(content, "utf-8")
        for scheme, width in (("light", 1_200), ("dark", 375)):
            chromium.prefer(prefers_color_scheme=scheme)
            chromium.resize(width)
            chromium.open((tmp_path / f"{name}.html").as_uri())
            hands = Hands(chromium)
            chromium.run(
                "[...document.querySelectorAll('details')].forEach((d) => { d.open = true; })"
            )
            hands.browser.click("#playground-run")
            hands.wait()
            chromium.run(f"{axe}; 0")
            found = chromium.run(
                "axe.run().then(({ violations, passes }) => ({ passes: passes.length, violations:"
                " violations.map((v) => v.id + ': ' + v.nodes.map((n) => n.html).join()) }))"
            )
            assert found["violations"] == [], (name, scheme)
            assert found["passes"] > 20
