"""A reader's visit to 03_math in a real browser: JupyterLab, Chromium, and Playwright's hands.

All tests look at one page that has run all cells once, in fast mode. No message of the console is
excused: the Colab badge, which the page asks the Internet for, is served by the test, and any other
request to the outside is a complaint like an error of the console or the page.

Screenshots are kept in the folder that CASCADE_ARTIFACTS names, else with pytest's temporary files.
CASCADE_REQUIRE_BROWSER=1 makes a missing Chromium a failure.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
import pytest

NOTEBOOK = Path(__file__).resolve().parents[1] / "notebooks" / "03_math.ipynb"
CELLS = [cell.id for cell in nbformat.read(NOTEBOOK, as_version=4).cells]
MISSING = "no Chromium for the browser tests: apt-get install chromium"
STEPS = 40  # of the training that is interrupted; fast mode's two would be over too soon
SECOND = 1000  # Playwright counts milliseconds
PATIENCE = 60 * SECOND  # for one reaction of the page, on a machine that others use too
RUN_ALL = 300 * SECOND
FLAGS = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
BADGE = "https://colab.research.google.com/assets/colab-badge.svg"
QUIET = {"fetchNews": "false", "checkForUpdates": False}  # no pop-up that asks about news
# Scrolls through the notebook, as a page does not lay out what is out of sight. Returns the labels
# and the texts on buttons that are cut off, the outputs that need scrolling sideways, and pictures
# that did not load.
HARD_TO_READ = """async () => {
    const found = [];
    for (const cell of document.querySelectorAll('.jp-Cell')) {
        cell.scrollIntoView();
        for (const _ of [1, 2]) await new Promise(requestAnimationFrame);
        const wide = e => e.checkVisibility() && e.scrollWidth > e.clientWidth + 1;
        const look = (what, bad) => cell.querySelectorAll(what).forEach(
            e => bad(e) && found.push(`${what}: ${e.textContent || e.src}`));
        look('.widget-label', wide);
        look('.jupyter-button', wide);
        look('.jp-OutputArea-output', wide);
        await Promise.allSettled([...cell.querySelectorAll('img')].map(e => e.decode()));
        look('.jp-OutputArea img', e => e.naturalWidth < 300);
    }
    return found;
}"""
ERROR = '[data-mime-type="application/vnd.jupyter.stderr"]'  # tracebacks are shown as this too
ALL_HAVE_RUN = f"""() => document.querySelector('{ERROR}') !== null
    || [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')]
        .every(e => /^\\[[0-9]+\\]:$/.test(e.textContent))"""

pytestmark = pytest.mark.timeout(600)


@dataclass
class Visit:
    """A page of a running JupyterLab, and what went wrong on it."""

    context: Any
    address: str
    runs: Path  # CASCADE_HOME of the kernel
    artifacts: Path
    page: Any = None
    complaints: list[str] = field(default_factory=list)

    def open(self) -> None:
        """Open the notebook in a new page and wait until the page knows its kernel's state."""
        self.page = self.context.new_page()
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.complaints.append(f"page error: {error}"))
        self.page.goto(self.address)
        self.page.locator("#jp-main-statusbar").get_by_text(re.compile("Idle|Busy")).wait_for()

    def _heard(self, message: Any) -> None:
        if message.type == "error":
            self.complaints.append(f"console: {message.text} ({message.location['url']})")

    def serve(self, route: Any) -> None:
        """Answer what the page asks from outside: the badge, and nothing else."""
        if route.request.url == BADGE:
            route.fulfill(
                content_type="image/svg+xml", body="<svg xmlns='http://www.w3.org/2000/svg'/>"
            )
        else:
            self.complaints.append(f"asked for {route.request.url}")
            route.abort()

    def cell(self, name: str) -> Any:
        """The cell with this id; a page shows no ids, so it is found by its place."""
        return self.page.locator(f'.jp-Cell[data-windowed-list-index="{CELLS.index(name)}"]')

    def run(self, cell: Any) -> None:
        """Click into a code cell and run it; this does not wait for its end."""
        cell.locator(".jp-InputArea-editor").click(position={"x": 5, "y": 5})
        self.page.keyboard.press("Control+Enter")

    def run_new_cell(self, source: str) -> None:
        """Write a code cell at the end of the notebook, run it, and wait for its end."""
        self.page.locator(".jp-Cell").last.click()
        for key in ("Escape", "b", "Enter"):
            self.page.keyboard.press(key)
        self.page.keyboard.insert_text(source)
        self.page.keyboard.press("Control+Enter")
        has_run(self.page.locator(".jp-CodeCell").last)

    def picture(self, name: str, cell: Any = None) -> None:
        """Keep a screenshot, with a cell (if given) at its top."""
        if cell is not None:
            cell.evaluate("cell => cell.scrollIntoView({block: 'start'})")
        self.page.screenshot(path=self.artifacts / f"{name}.png")


def has_run(cell: Any) -> None:
    """Wait until a cell has a number instead of a star."""
    number = cell.locator(".jp-InputPrompt").get_by_text(re.compile(r"^\[\d+\]:$"))
    number.wait_for(timeout=RUN_ALL)
    assert errors_in(cell) == []


def errors_in(place: Any) -> list[str]:
    """What stands on a place as an error; all of it, if a cell has raised one."""
    return place.locator(ERROR).all_text_contents()


def says(cell: Any, text: str, timeout: float = PATIENCE) -> Any:
    """Wait until a cell's output holds a text or pattern, and return the place."""
    found = cell.locator(".jp-Cell-outputArea").get_by_text(re.compile(text)).first
    found.wait_for(timeout=timeout)
    return found


@pytest.fixture(scope="module")
def chromium() -> str:
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if not found and os.environ.get("CASCADE_REQUIRE_BROWSER", "0") not in ("", "0"):
        pytest.fail(MISSING)
    return found or pytest.skip(MISSING)


@pytest.fixture(scope="module")
def server(chromium, tmp_path_factory) -> Iterator[tuple[str, Path]]:
    """JupyterLab over a copy of the notebook, in an empty home: its address and CASCADE_HOME."""
    home = tmp_path_factory.mktemp("lab")
    (home / "notebooks").mkdir()
    shutil.copy(NOTEBOOK, home / "notebooks")
    settings = home / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(json.dumps(QUIET))
    folders = {"HOME": "", "CASCADE_HOME": "runs", "JUPYTERLAB_SETTINGS_DIR": "settings"}
    folders |= {f"JUPYTER_{name}_DIR": name.lower() for name in ("CONFIG", "DATA", "RUNTIME")}
    environment = os.environ | {name: str(home / place) for name, place in folders.items()}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--port=0"]
    command += ["--ip=127.0.0.1", "--IdentityProvider.token=visit", "--notebook-dir=notebooks"]
    with (home / "server.log").open("w") as log:
        process = subprocess.Popen(
            command, cwd=home, env=environment | {"CASCADE_FAST": "1"}, stdout=log, stderr=log
        )
        try:
            yield address_of(process, home), home / "runs"
        finally:
            process.terminate()  # it ends its kernels first
            process.wait(timeout=60)


def address_of(process: subprocess.Popen, home: Path) -> str:
    """The address of the server as soon as it has written it down."""
    deadline = time.monotonic() + PATIENCE / SECOND
    while True:
        for path in home.glob("runtime/jpserver-*.json"):
            if (text := path.read_text(encoding="utf-8")).endswith("}"):  # written to its end
                return json.loads(text)["url"]
        log = (home / "server.log").read_text(encoding="utf-8")
        assert process.poll() is None and time.monotonic() < deadline, log
        time.sleep(0.2)


@pytest.fixture(scope="module")
def visit(chromium, server, tmp_path_factory) -> Iterator[Visit]:
    """The notebook after Run All."""
    from playwright.sync_api import sync_playwright

    address, runs = server
    named = os.environ.get("CASCADE_ARTIFACTS")
    artifacts = Path(named).resolve() if named else tmp_path_factory.mktemp("screenshots")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        context = browser.new_context(viewport={"width": 1280, "height": 900})
        context.set_default_timeout(PATIENCE)
        visit = Visit(
            context, f"{address}lab/tree/{NOTEBOOK.name}?token=visit&reset", runs, artifacts
        )
        outside = re.compile(f"^(?!{re.escape(address)})https?:")
        context.route(outside, visit.serve)
        visit.open()
        visit.page.get_by_role("menuitem", name="Run", exact=True).click()
        visit.page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        visit.page.wait_for_function(ALL_HAVE_RUN, timeout=RUN_ALL)
        assert errors_in(visit.page) == []
        yield visit
        browser.close()


@pytest.fixture(autouse=True)
def nothing_to_complain(visit) -> Iterator[None]:
    yield
    assert visit.complaints == []


def test_all_cells_run_and_all_that_they_show_can_be_read(visit):
    assert visit.page.locator(".jp-RenderedImage img").count() >= 3
    assert visit.page.evaluate(HARD_TO_READ) == []
    for name in ("title", "train", "evaluate", "matrix"):
        visit.picture(f"run-all-{name}", visit.cell(name))


def test_the_stage_panel_tells_what_a_change_costs_and_refuses_nonsense(visit):
    panel = visit.cell("panel")
    panel.get_by_label("Steps").fill("7")
    panel.get_by_label("Steps").press("Enter")
    says(panel, "takes 7 steps of 4 prompts with 4 answers each: 112 answers")
    panel.get_by_label("Answers a prompt").fill("1")
    panel.get_by_label("Answers a prompt").press("Enter")
    says(panel, "use at least 2")
    assert panel.get_by_label("Answers a prompt").input_value() == "4"
    visit.picture("stage-panel", panel)


def test_the_sandbox_scores_what_is_typed(visit):
    sandbox = visit.cell("sandbox")
    score = sandbox.get_by_role("button", name="Score", exact=True)
    sandbox.get_by_label("Answer").fill(r"I guess that it is \boxed{999}.")
    score.click()
    says(sandbox, "Reward 0, success 0 because: wrong answer: 999")
    sandbox.get_by_role("button", name="Fill in a right answer").click()
    says(sandbox, "Press Score")
    score.click()
    says(sandbox, "Reward 1, success 1")
    visit.picture("sandbox", sandbox)


def test_the_browser_opens_a_group(visit):
    browser = visit.cell("browser")
    browser.get_by_label("Step", exact=True).select_option("2")
    says(browser, "math: 8 groups in 2 steps, .* 4 match the filters")
    group = browser.get_by_label("Group", exact=True)
    wanted = group.locator("option").last.get_attribute("value")
    step, problem = re.match(r"step (\d+), (math-\w+):", wanted).groups()
    assert step == "2"
    group.select_option(wanted)
    says(browser, f"4 answers to {problem}, best reward first")
    assert browser.get_by_role("columnheader").all_text_contents()[1].startswith("sample ")
    visit.picture("rollout-browser", browser)


def test_a_click_on_the_matrix_opens_the_cell(visit):
    explorer = visit.cell("explorer")
    explorer.get_by_title("code after math").click()
    says(explorer, "code after math, not yet trained: score 0")
    assert explorer.get_by_label("Domain").locator("option:checked").text_content() == "code"
    explorer.get_by_title("math after math").click()
    says(explorer, "math after math, which trained it: score 0")
    visit.picture("matrix-explorer", explorer)


def test_training_stops_between_two_steps_goes_on_and_is_found_again(visit):
    visit.run_new_cell(
        f'session = open_session("math", again=True)\nsession.configure(steps={STEPS})'
    )
    train = visit.cell("train")
    visit.run(train)
    says(train, rf"step [3-9] of {STEPS}")
    visit.page.locator('[data-command="notebook:interrupt-kernel"]').click()
    has_run(train)
    done = int(re.search(r"step (\d+)", says(train, "Interrupted after step").text_content())[1])
    assert 3 <= done < STEPS
    assert steps_in(visit) == list(range(1, done + 1))
    visit.picture("interrupted", train)

    visit.run(train)
    later = "|".join(map(str, range(done + 1, STEPS)))
    says(train, rf"step ({later}) of {STEPS}")
    visit.picture("going-on", train)
    visit.page.close()

    visit.open()
    attach = visit.cell("attach")
    visit.run(attach)  # in the same kernel, so it waits for the training
    says(attach, rf"step {STEPS} of {STEPS}.*finished", timeout=RUN_ALL)
    has_run(attach)
    assert steps_in(visit) == list(range(1, STEPS + 1))
    visit.picture("attached", attach)


def steps_in(visit: Visit) -> list[int]:
    """The steps that the run folder has recorded of this training."""
    log = visit.runs / "notebooks-fast" / "3-math" / "steps.jsonl"
    return [json.loads(line)["step"] for line in log.read_text(encoding="utf-8").splitlines()]
