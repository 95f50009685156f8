"""A sweep's page and plots: nothing a user wrote becomes HTML, and every job stands where its numbers say."""

from __future__ import annotations

import base64
import hashlib
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import matplotlib as mpl
import pytest
from PIL import Image

from runner.report import leaderboard_plots
from runner.report.leaderboard import Board, Row, board
from runner.report.leaderboard_axes import fitted, medians, metric, parameters, shades
from runner.report.leaderboard_page import page
from runner.report.leaderboard_svg import panels, parallel
from runner.report.page import ORANGE, STYLE
from runner.schema import Mode

NASTY = "</script><img src=x onerror=alert(1)>\"'&{}$x_1$\\frac"
VOID = ("meta", "br", "input")


class Document(HTMLParser):
    """Tags, attributes and texts, as a browser would take them; its own tags must all be closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: dict[str, list[str]] = {}  # by the tag around them
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self._open[-1] if self._open else "", []).append(data)


def sweep(jobs: int, keys: int = 8) -> Board:
    """A grid-like sweep: every eighth job failed, every ninth was pruned."""
    rows = []
    for job in range(jobs):
        lr = f"{10 ** -(job * 37 % 101 / 20):.5g}"
        model, batch = ("cnn", "mlp", "linear")[job % 3], ("16", "32", "64")[job % 3]
        asked = [f"optimizer.lr={lr}", f"model={model}", f"trainer.batch_size={batch}"]
        asked += [f"group_{key}.name={job * key % 13}" for key in range(3, keys)]
        status = "FAILED" if job % 8 == 7 else "PRUNED" if job % 9 == 8 else "FINISHED"
        measured = {} if status == "FAILED" else {"val/accuracy": 0.5, "val/f1": 0.25}
        value = None if status == "FAILED" else 0.1 + job * 61 % 97 / 97
        rows.append(
            Row(job, tuple(asked[:keys]), status, value, measured, 27.0, 48.0, f"{job:032x}", "no" * 20, "/x")
        )
    return board("multirun 10-00-00", "f" * 32, "val/loss", Mode.min, rows)


def nasty() -> Board:
    rows = [
        Row(job, (f"a.{NASTY}={NASTY}{job}", f"<i>.b=<b>{job}"), "FAILED" if job == 2 else "FINISHED", 0.5 + job, {NASTY: 1.0},
            run_id=NASTY, reason=NASTY, log=NASTY, cached=NASTY)
        for job in range(3)
    ]  # fmt: skip
    return board(NASTY, NASTY, f"val/{NASTY}", Mode.max, rows)


@pytest.mark.parametrize("found", [nasty(), sweep(3, 1), sweep(16)], ids=["nasty", "one key", "eight keys"])
def test_only_our_own_script_is_in_the_page_and_nothing_is_fetched(found: Board) -> None:
    text = page(found)
    document = Document(text)
    known = "html head meta title style body header p h1 h2 small dl dt dd code section div span svg g path rect circle text"
    known += " tspan input button table thead tbody tr th td ul li br script"
    assert set(document.tags) - set(known.split()) == set()
    (script,) = document.texts["script"]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = dict(document.attributes)["content"]  # of the last meta; the policy's is before it
    assert policy == "width=device-width, initial-scale=1"
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in text
    names = {name for name, _ in document.attributes}
    assert not {name for name in names if name.startswith("on")} | (
        names & {"src", "href", "style", "action"}
    )
    assert re.findall(r"https?:|//[a-z]|url\(|@import", text.replace("// ", "")) == []


def test_what_users_wrote_is_shown_as_it_is() -> None:
    document = Document(page(nasty()))
    assert document.texts["title"][0] == f"val/{NASTY} · {NASTY}"
    assert document.texts["code"].count(NASTY) == 6  # three runs, the best one's, the sweep's, a log
    assert f"{NASTY}".partition("=")[2] + "=" + NASTY + "0" in document.texts["td"]  # the override's value
    assert document.texts["li"] == [" ", NASTY]


def test_two_hundred_jobs_make_a_page_below_a_megabyte() -> None:
    text = page(sweep(200))
    assert 100_000 < len(text.encode()) < 500_000
    document = Document(text)
    assert document.tags.count("tr") == 201
    assert document.tags.count("li") == 25
    assert document.tags.count("svg") == 8 + 1 + 4  # panels, parallel coordinates, its legend


def test_rows_have_their_numbers_in_full_to_sort_by() -> None:
    rows = [
        Row(0, ("a=1",), "FINISHED", 1 / 3, seconds=90.25),
        Row(1, ("a=2",), "FINISHED", 2e-9),
        Row(2, ()),
    ]
    text = page(board("s", None, "val/loss", Mode.min, rows))
    assert '<td class="number value" data-v="0.333333333333">0.3333</td>' in text
    assert '<td class="number" data-v="90.25">90 s</td>' in text
    # Job 2: rank, a, epochs, time; of jobs 0 and 1 the epochs, of job 1 the time.
    assert text.count('<td class="number" data-v="">–</td>') == 7
    assert re.findall(r'<tr class="(\w*)" data-job="(\d)">', text) == [("best", "1"), ("", "0"), ("", "2")]


def test_the_command_that_trains_the_best_again_can_be_pasted() -> None:
    rows = [Row(0, ("model.hidden=[64,32]", "~group", "+x='a b'"), "FINISHED", 0.5)]
    document = Document(page(board("s", None, "val/loss", Mode.min, rows)))
    assert document.texts["code"] == [
        "python -m runner 'model.hidden=[64,32]' '~group' '+x='\"'\"'a b'\"'\"''"
    ]


def test_a_sweep_without_a_value_or_without_a_difference_has_a_page_and_no_plots(tmp_path: Path) -> None:
    lost = board("s", None, "val/loss", Mode.min, [Row(0, ("a=1",), "FAILED"), Row(1, ("a=2",))])
    same = board("s", None, "val/loss", Mode.min, [Row(0, ("a=1",), "FINISHED", 0.5)])
    for found in (lost, same):
        assert Document(page(found)).tags.count("svg") == 0
        leaderboard_plots.draw(found, tmp_path)
    assert list(tmp_path.iterdir()) == []


def shapes(svg: str, tag: str) -> list[dict[str, str]]:
    return [dict(each.attrib) for each in ElementTree.fromstring(svg).iter(tag) if "data-job" in each.attrib]


def three() -> Board:
    rows = [
        Row(0, ("lr=0.01", "model=cnn"), "FINISHED", 2.0),
        Row(1, ("lr=1", "model=mlp"), "FINISHED", 1.0),
        Row(2, ("lr=0.1", "model=mlp"), "FAILED"),
        Row(3, ("model=mlp",), "PRUNED", 1.5),
    ]
    return board("s", None, "val/loss", Mode.min, rows)


def test_a_line_goes_through_the_values_of_its_job() -> None:
    lines = shapes(parallel(three()), "path")
    # Jobs 1 to 3 of mlp stand around its place, three quarters up; 0 alone around a quarter.
    assert [(line["data-job"], line["class"], line["data-at"]) for line in lines] == [
        ("2", "lost", "500,316,"),
        ("0", "s3", "1000,875,0"),
        ("3", "s1 pruned", ",161,500"),
        ("1", "best", "0,220,1000"),
    ]
    assert [line["d"] for line in lines[:2]] == [
        "M64 186.0L404 136.7L744 346.0",  # up to where lines without a value end
        "M64 320.0L404 286.5L744 52.0",
    ]
    assert lines[2]["d"].startswith("M404 ")  # it has no lr


def test_points_stand_at_their_values_and_crosses_at_the_worse_edge() -> None:
    lr, model = panels(three())
    points = {each["data-job"]: (each["cx"], each["cy"]) for each in shapes(lr, "circle")}
    assert points == {"0": ("62.0", "56.0"), "1": ("348.0", "204.0")}
    (cross,) = shapes(lr, "path")
    assert (cross["data-x"], cross["data-y"]) == ("205.0", "38")
    upside = board("s", None, "val/accuracy", Mode.max, three().rows)
    assert shapes(panels(upside)[0], "path")[0]["data-y"] == "206"
    assert [each["class"] for each in shapes(model, "circle")] == ["s3", "s1 pruned", "best"]


def test_a_logarithmic_panel_says_so() -> None:
    assert ["log" in svg for svg in panels(three())] == [True, False]


def test_shades_go_by_rank() -> None:
    values = [1.0, 2.0, 3.0, 1e9, 1e10]
    rows = [Row(number, (), "FINISHED", value) for number, value in enumerate(values)]
    assert shades(board("s", None, "m", Mode.min, rows)) == {0: 0, 1: 1, 2: 2, 3: 3, 4: 4}
    assert shades(board("s", None, "m", Mode.max, rows)) == {4: 0, 3: 1, 2: 2, 1: 3, 0: 4}


def test_values_that_jobs_share_have_a_median() -> None:
    rows = [Row(job, (f"a={job % 2}", f"<i>.b=<b>{job}"), "FINISHED", float(job)) for job in range(6)]
    found = board("s", None, "m", Mode.min, rows)
    a, b = parameters(found)
    assert medians(found, a) == [(0.0, 2.0), (1.0, 3.0)]
    assert medians(found, b) == []
    assert metric(found).places == {job: job / 5 for job in range(6)}


def test_labels_that_would_meet_go_a_row_lower_or_are_left_out() -> None:
    ticks = [(0.1, "aaaa"), (0.2, "bbbb"), (0.3, "cccc"), (0.4, "dddd")]
    assert fitted(ticks, 100, 5, rows=2) == [(0.1, "aaaa", 0), (0.2, "bbbb", 1), (0.4, "dddd", 0)]
    assert fitted(ticks, 1000, 5) == [(place, label, 0) for place, label in ticks]


@pytest.mark.parametrize(
    ("found", "sizes"),
    [
        (sweep(3, 1), [(840, 486), (840, 462)]),
        (sweep(200), [(1368, 486), (840, 834)]),
        (sweep(30, 20), [(1968, 486), (840, 1086)]),  # 12 parameters of 20
        (nasty(), [(840, 486), (840, 330)]),
    ],
    ids=["one key", "200 jobs", "many keys", "nasty"],
)
def test_plots_are_drawn_without_a_warning(
    found: Board, sizes: list[tuple[int, int]], tmp_path: Path
) -> None:
    leaderboard_plots.draw(found, tmp_path)
    drawn = []
    for name in ("parallel", "parameters"):
        with Image.open(tmp_path / f"{name}.png") as image:
            drawn.append(image.size)
    assert drawn == sizes


def test_the_best_line_is_drawn_last_and_labels_stay_within_the_plot() -> None:
    with mpl.rc_context(STYLE):
        figure = leaderboard_plots.parallel(sweep(200))
        figure.draw_without_rendering()
    (paper,) = figure.axes
    lines = [line for line in paper.lines if len(line.get_xdata()) == 9]
    assert len(lines) == 200
    assert max(lines, key=lambda line: line.get_zorder()).get_color() == ORANGE
    boxes = [text.get_window_extent() for text in paper.texts if text.get_text()]
    assert min(box.x0 for box in boxes) >= 0
    assert max(box.x1 for box in boxes) <= 1368


def test_a_panel_s_points_are_those_of_the_jobs() -> None:
    with mpl.rc_context(STYLE):
        lr, model = leaderboard_plots.panels(three()).axes
    points = {line.get_color(): line.get_xydata().tolist() for line in lr.lines if line.get_marker() == "o"}
    assert list(points.values()) == [[[0.0, 1.0]], [[1.0, 0.0]]]
    (cross,) = (line for line in lr.lines if line.get_marker() == "x")
    assert cross.get_xydata().tolist() == [[0.5, 1.05 + leaderboard_plots.STRIP / 2]]
    assert [text.get_text() for text in model.get_xticklabels()] == ["cnn", "mlp"]
    assert lr.get_title(loc="left") == "lr (log)"
