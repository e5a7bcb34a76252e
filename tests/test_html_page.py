"""The page: it stays small, says everything without its script, cannot be broken into, and works in a browser."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess

import pytest

from unjam.doctor.facts.run import LoaderRun, RunFacts, RunFailure, TimedBatch, TimedCopy, Wait
from unjam.doctor.facts.timeline import MOST_BARS, merge_bars, run_timeline
from unjam.doctor.facts.tune_measurements import Measurement, TuneResult, TuneSetting
from unjam.doctor.report import page, run, trace
from unjam.doctor.rules.advice import advise
from unjam.doctor.rules.tuning import judge

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
EVIL = "</script><script>document.title='broken'</script><img src=x onerror=alert(1)>&\"'"


def a_run(batches=400, workers=4, samples=32, evil=""):
    """A loader's record: a worker makes a batch in 20 ms, the training takes one every 6 ms."""
    made, waits = [], []
    for number in range(batches):
        begun = (number // workers) * 20_000_000
        slow = 50_000_000 if number == 77 else 1_000_000
        made.append(
            TimedBatch(
                number % workers,
                begun,
                begun + 15_000_000,
                begun + 18_000_000,
                samples,
                slow,
                f"{number}{evil}",
                begun + 17_000_000,
            )
        )
        got = begun + 19_000_000 + (number % workers) * 1000
        waits.append(Wait(got - 5_000_000, got, first=number == 0))
    return LoaderRun(
        f"DataLoader over Photos{evil}",
        None,
        workers,
        samples,
        persistent=False,
        driver="unjam",
        epochs=1,
        batches=batches,
        samples=batches * samples,
        waited=1.5,
        trained=3.0,
        waits=tuple(waits),
        made=tuple(made),
        memory=tuple(
            (at * 10_000_000, worker, 50_000_000 + at * 1000) for at in range(100) for worker in range(workers)
        ),
        failures=(RunFailure(f"ValueError: bad{evil}", 3, "1, 2, 3", "skip"),),
    )


def run_page(**options):
    evil = options.get("evil", "")
    return run.page(
        advise(RunFacts(f"train.py {evil}", 5.0, (a_run(**options),), f"ValueError{evil}" if evil else "")), "1.0"
    )


def a_climb(evil=""):
    rates = {0: 200, 1: 190, 2: 380, 4: 700, 8: 720}
    found = [
        Measurement(
            TuneSetting("unjam", workers), "fine", "", 2.0, 100, 3200, (3200, 3200 / rate), (rate * 0.98, rate, rate * 1.02), 0.2, 0.3,
            min(workers, 2) * 0.95, 0.1, 200_000_000 + workers * 50_000_000, 0.9, 0.0, 0,
            {"getitem": 0.004 * max(1, workers / 4), "collate": 0.0001, "pickle": 0.00005}, {"nothing": 50, "sleep": 3},
            ((f"7{evil}", 0.05), ("9", 0.01)), None,
            tuple((100 + n % max(1, workers), n * 10_000_000, n * 10_000_000 + 8_000_000, n * 10_000_000 + 9_000_000, 32, f"{n}{evil}", 500_000, f"batch {n}{evil}") for n in range(60)),
        )
        for workers, rate in rates.items()
    ]  # fmt: skip
    found.append(Measurement(TuneSetting("torch", 4), "raised", f"ValueError: no{evil}"))
    as_is = TuneSetting("torch", 2)
    return judge(
        TuneResult(
            (*found, Measurement(as_is, "fine", "", 1.0, 50, 1600, (1600, 5.0), (318, 320, 322), 0.5)),
            32,
            2,
            16,
            "memory",
            as_is,
            f"Photos{evil}",
            "train.py:9",
        )
    )


def data_of(text):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def test_a_page_of_a_million_samples_stays_small():
    text = run_page(batches=40_000, samples=25, workers=8)
    assert len(text.encode()) < 3_000_000
    data = data_of(text)
    assert len(data["timelines"][0]["bars"]) <= MOST_BARS
    assert sum(bar[7] for bar in data["timelines"][0]["bars"]) == 1_000_000, "put together, and none lost"


def test_merging_bars_loses_no_samples():
    picture = run_timeline(a_run(batches=9000))
    assert len(picture.bars) <= MOST_BARS
    assert sum(bar.samples for bar in picture.bars) == 9000 * 32
    assert all(0 < bar.share <= 1 for bar in picture.bars)
    assert any(bar.slow == "77" for bar in picture.bars), "the slowest of a slice keeps its name"
    assert len(merge_bars(list(picture.bars), 4, picture.span)) == len(picture.bars)


@pytest.mark.parametrize(
    "make",
    [lambda evil: run_page(evil=evil), lambda evil: page.of_tune(a_climb(evil), "1", evil)],
    ids=["run", "tune"],
)
def test_program_text_cannot_inject_markup(make):
    text = make(EVIL)
    assert text.count("<script") == 2
    assert text.count("</script>") == 2
    assert "<img" not in text
    assert EVIL in json.dumps(data_of(text)).encode().decode("unicode_escape"), "it is there, as text"
    tags = re.findall(r"<[a-z][^>]*>", re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL))
    assert not [tag for tag in tags if re.search(r"\s(src|href)=(?!\"#)", tag)], "nothing is fetched"


def test_the_page_is_complete_without_its_script():
    text = page.of_tune(a_climb(), "1", "unjam tune train.py")
    visible = re.sub(r"<(script|style).*?</\1>", "", text, flags=re.DOTALL)
    for words in (
        "num_workers=4",
        "throughput by number of workers",
        "all 2 processors are in use",
        "raised",
        "train.py",
        "Slowest samples",
    ):
        assert words.lower() in visible.lower(), words
    assert visible.count("<circle") == 6  # every setting that ran is a dot that can be focused
    visible = re.sub(r"<(script|style).*?</\1>", "", run_page(), flags=re.DOTALL)
    assert all(
        title in visible for title in ("Throughput", "Waiting for data", "Private memory per worker", "Batches loaded")
    )


def test_a_long_line_of_code_wraps_inside_its_cell():
    """No cell but a number may make the table wider than the page."""
    code = "image = " + "transform(" * 60 + "x" + ")" * 60
    line = {
        "file": f"{'/deep' * 40}/data.py",
        "line": 7,
        "text": code,
        "inside": "",
        "stage": "getitem",
        "share": 0.875,
    }
    shown = page.HtmlPage("unjam tune", "1")
    page.profile(shown, {"transforms": [], "lines": [line], "looks": 8}, "1 worker")
    text = shown.html("lines")
    row = re.search(r"<tbody><tr>(.*?)</tr></tbody>", text)[1]
    cells = re.findall(r"<td([^>]*)>(.*?)</td>", row)
    assert [words for name, words in cells if "number" in name] == ["87.5%"]
    assert [words for name, words in cells if code in words and "number" not in name] == [code]
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    assert re.search(r"td:not\(\.number\)\{[^}]*overflow-wrap:anywhere", style)
    assert ".scroll{overflow-x:auto}" in style, "a table that is still too wide scrolls in its own box"


# -- in a browser ----------------------------------------------------------------------------------------------------------

NEEDS = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; install one to run these")

CLICKS = """
<script>
addEventListener("error", (event) => { document.title = "error: " + event.message; });
addEventListener("load", () => setTimeout(() => {
  const said = {};
  try { (() => {
    const figure = document.querySelector("figure[data-timeline]"), canvas = figure.querySelector("canvas");
    const caption = figure.querySelector("figcaption"), box = canvas.getBoundingClientRect();
    const send = (target, kind, more) => target.dispatchEvent(new (kind.startsWith("key") ? KeyboardEvent : kind === "wheel" ? WheelEvent : PointerEvent)(kind, { bubbles: true, cancelable: true, pointerId: 1, ...more }));
    said.whole = figure.view().slice(0, 2);
    canvas.setPointerCapture = () => {};
    send(canvas, "pointermove", { clientX: box.left + 78 + 3, clientY: box.top + 12 });
    said.hover = caption.textContent;
    figure.querySelector("button[data-act=in]").click();
    said.zoomed = figure.view().slice(0, 2);
    figure.querySelector("button[data-act=right]").click();
    said.moved = figure.view().slice(0, 2);
    send(canvas, "wheel", { deltaY: -100, ctrlKey: true, clientX: box.left + box.width / 2, clientY: box.top + 10 });
    said.wheeled = figure.view().slice(0, 2);
    const free = !canvas.dispatchEvent(new WheelEvent("wheel", { deltaY: 100, bubbles: true, cancelable: true }));
    said.scrolls = !free;
    figure.querySelector("button[data-act=all]").click();
    said.again = figure.view().slice(0, 2);
    canvas.focus();
    said.focused = document.activeElement === canvas;
    for (const key of ["ArrowRight", "ArrowRight", "ArrowDown"]) send(canvas, "keydown", { key });
    said.keys = caption.textContent;
    send(canvas, "keydown", { key: "+" });
    said.plus = figure.view().slice(0, 2);
    send(canvas, "pointerdown", { clientX: box.left + 400, clientY: box.top + 10 });
    send(canvas, "pointermove", { clientX: box.left + 300, clientY: box.top + 10 });
    send(canvas, "pointerup", {});
    said.dragged = figure.view().slice(0, 2);
    const paint = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
    said.painted = paint.some((value, at) => at % 4 === 3 && value > 0);
    const chart = document.querySelector("figure[data-chart]"), svg = chart.querySelector("svg");
    send(svg, "keydown", { key: "End" });
    said.chart = chart.querySelector("figcaption").textContent;
    const table = [...document.querySelectorAll("table.sortable")].find((one) => one.tBodies[0].rows.length > 3), head = [...table.querySelectorAll("th button")].pop();
    const column = () => [...table.tBodies[0].rows].map((row) => row.cells[row.cells.length - 1].textContent);
    head.click(); said.down = column();
    head.click(); said.up = column();
    said.width = document.documentElement.scrollWidth - innerWidth;
    said.links = [...document.querySelectorAll("nav a")].every((a) => document.querySelector(a.getAttribute("href")));
    said.reachable = [...document.querySelectorAll("button,a,summary,[tabindex]")].every((one) => one.tabIndex >= 0);
    said.title = document.title;
  })(); } catch (error) { said.error = String(error.stack); }
  const out = document.createElement("pre"); out.id = "said"; out.textContent = JSON.stringify(said); document.body.append(out);
}, 300));
</script>
"""


def click_through(text, folder, *options):
    file = folder / "page.html"
    file.write_text(text.replace("</body>", CLICKS + "</body>"))
    command = [
        CHROMIUM,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder}/profile",
        *options,
    ]
    done = subprocess.run(
        [*command, "--virtual-time-budget=4000", "--dump-dom", f"file://{file}"],
        capture_output=True, text=True, timeout=100, check=False, env={**os.environ, "HOME": str(folder)},
    )  # fmt: skip
    found = re.search(r'<pre id="said">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found, done.stdout[-500:] + done.stderr[-2000:]
    said = json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
    assert "error" not in said, said["error"]
    return said


@NEEDS
@pytest.mark.parametrize("size", ["1100,900", "390,800"], ids=["desk", "phone"])
def test_the_page_works_in_a_browser(tmp_path, size):
    said = click_through(run_page(evil=EVIL), tmp_path, f"--window-size={size}")
    whole, zoomed, moved = said["whole"], said["zoomed"], said["moved"]
    assert "fetch 15 ms, collate 2 ms, pack 1 ms" in said["hover"]
    assert "32 samples" in said["hover"]
    assert zoomed[1] - zoomed[0] == pytest.approx((whole[1] - whole[0]) / 2)
    assert moved[0] > zoomed[0]
    assert said["wheeled"][1] - said["wheeled"][0] < moved[1] - moved[0]
    assert said["scrolls"], "the wheel alone scrolls the page"
    assert said["again"] == whole
    assert said["focused"]
    assert said["keys"].startswith("worker 1, a batch")
    assert said["plus"][1] - said["plus"][0] < whole[1] - whole[0]
    assert said["dragged"][0] > said["plus"][0] or said["dragged"][1] == whole[1]
    assert said["painted"]
    assert "samples/s" in said["chart"]
    assert said["down"] != said["up"]
    assert said["width"] <= 0, "it scrolls sideways"
    assert said["links"]
    assert said["reachable"]
    assert said["title"].startswith("unjam run"), said["title"]


@NEEDS
def test_the_tune_page_works_in_a_browser(tmp_path):
    said = click_through(page.of_tune(a_climb(EVIL), "1", "unjam tune train.py"), tmp_path)
    assert said["painted"]
    assert said["title"] == "unjam tune train.py"


@NEEDS
def test_the_page_can_be_printed(tmp_path):
    file = tmp_path / "page.html"
    file.write_text(run_page())
    subprocess.run(
        [CHROMIUM, "--headless=new", "--no-sandbox", f"--user-data-dir={tmp_path}/profile", f"--print-to-pdf={tmp_path}/page.pdf", f"file://{file}"],
        capture_output=True, timeout=100, check=False, env={**os.environ, "HOME": str(tmp_path)},
    )  # fmt: skip
    pages = (tmp_path / "page.pdf").read_bytes().count(b"/Type /Page\n") or (tmp_path / "page.pdf").read_bytes().count(
        b"/Type /Page"
    )
    assert pages >= 2


def test_device_copies_have_a_row_a_chart_and_a_track():
    copies = tuple(TimedCopy(n * 10_000_000, n * 10_000_000 + 2_000_000, 80_000_000, 0) for n in range(50))
    facts = dataclasses.replace(a_run(), copies=copies)
    text = run.page(advise(RunFacts("train.py", 5.0, (facts,))), "1.0")
    shown = data_of(text)["timelines"][0]
    row = shown["rows"].index("to device")
    bars = [bar for bar in shown["bars"] if bar[0] == row]
    assert len(bars) == 50
    assert bars[3][5] == pytest.approx(0.002)
    assert "80.0 MB at 40.0 GB/s" in bars[3][6]
    assert shown["rows"][-1] == "training"
    assert "Copied to the device" in text
    events = json.loads(trace.chrome(RunFacts("train.py", 5.0, (facts,)), "1.0"))["traceEvents"]
    sent = [event for event in events if event["name"] == "copy"]
    assert len(sent) == 50
    assert sent[0]["args"]["bytes"] == 80_000_000
    assert not {event["tid"] for event in sent} & {event["tid"] for event in events if event["name"] == "batch"}
