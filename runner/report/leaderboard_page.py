"""A sweep as one HTML file: nothing is fetched, everything a user wrote is text, and without JavaScript it is a plain table.

Its script and style are leaderboard.js and leaderboard.css beside this file. The page's policy allows that script alone, by its
hash, so that a text which were taken for HTML after all could still not run, nor reach the network.
"""

from __future__ import annotations

import base64
import hashlib
import math
import shlex
from collections.abc import Mapping
from html import escape
from pathlib import Path

from runner.report.leaderboard import Board, Row
from runner.report.leaderboard_axes import medians, parameters
from runner.report.leaderboard_svg import panels, parallel
from runner.report.leaderboard_table import MISSING, duration
from runner.report.page import number

HERE = Path(__file__).parent
TALL = 20  # rows, from which the table scrolls by itself


def page(board: Board) -> str:
    """The file's text."""
    style, script = ((HERE / f"leaderboard.{kind}").read_text() for kind in ("css", "js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    body = "".join((_header(board), _parallel(board), _table(board), _panels(board), _failed(board)))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(board.monitor)} · {escape(board.title)}</title>\n<style>\n{style}</style>\n</head>\n"
        f'<body>\n{body}<div id="tip" hidden></div>\n<script>{script}</script>\n</body>\n</html>\n'
    )


def _header(board: Board) -> str:
    facts: dict[str, str] = {}
    heading = f"no {escape(board.monitor)} yet"
    if board.ranked:
        best = board.ranked[0]
        heading = f"{escape(board.monitor)} {number(best.value)}"
        took = f", {duration(best.seconds)}" if best.seconds is not None else ""
        facts["best job"] = f"{best.number}, {escape(best.outcome)}{took}"
        facts["train it again"] = _copied(f"python -m runner {shlex.join(best.asked)}".rstrip())
        if best.run_id:
            facts["its MLflow run"] = _copied(best.run_id)
    if board.run_id:
        facts["the sweep's run"] = _copied(board.run_id)
    listed = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in facts.items())
    return (
        f'<header><p class="kicker">{escape(board.title)} · {board.counts}</p>'
        f"<h1>{heading} <small>{board.direction}</small></h1>"
        f'<dl class="facts">{listed}</dl></header>\n'
    )


def _parallel(board: Board) -> str:
    """Of a single parameter its own picture says the same more plainly."""
    if len(board.columns) < 2 or not board.ranked:
        return ""
    ramp = "".join(
        f'<path class="s{4 - shade}" d="M{13 * shade} 5h12" stroke-width="4"/>' for shade in range(5)
    )
    marks = [f'<span><svg viewBox="0 0 66 10">{ramp}</svg>worse to better</span>', _key("best", "best")]
    if any(row.status == "PRUNED" for row in board.rows):
        marks.append(_key("s1 pruned", "pruned"))
    if len(board.ranked) < len(board.rows):
        marks.append(_key("lost", "no value"))
    return (
        f'<section><h2>Every job</h2><div class="legend">{"".join(marks)}</div>'
        '<p class="quiet hint">Point at a line to see its job. Drag along an axis to keep the jobs within; click it to keep all.</p>'
        f'<div class="wide">{parallel(board)}</div></section>\n'
    )


def _key(kind: str, said: str) -> str:
    return f'<span><svg class="short" viewBox="0 0 26 10"><path class="{kind}" data-at="" d="M0 5h26"/></svg>{said}</span>'


def _table(board: Board) -> str:
    numeric = {axis.name: axis.is_numeric for axis in parameters(board)}
    heads = [
        *(_head(name, True) for name in ("rank", "job", board.monitor)),
        *(_head(key, numeric[key]) for key in board.columns),
        *(_head(name, True) for name in (*board.others, "epochs", "time")),
        *(_head(name, False) for name in ("status", "MLflow run")),
    ]
    ranks: Mapping[int, int] = {row.number: place for place, row in enumerate(board.ranked, start=1)}
    rows = "\n".join(_row(board, row, ranks.get(row.number), numeric) for row in board.rows)
    tall = " tall" if len(board.rows) > TALL else ""
    return (
        '<section><h2>Leaderboard</h2><div class="bar">'
        '<input id="search" type="search" placeholder="filter: adam, or optimizer=adam" aria-label="filter the jobs">'
        '<span id="count" class="quiet"></span><button id="reset" type="button" hidden>show all</button></div>'
        f'<div class="scroll{tall}"><table><thead><tr>{"".join(heads)}</tr></thead>\n<tbody>\n{rows}\n</tbody></table></div></section>\n'
    )


def _head(name: str, is_number: bool) -> str:
    group, _, last = name.rpartition(".")
    small = f"<small>{escape(group)}.</small>" if group else ""
    return f'<th{" class=number" if is_number else ""} data-name="{escape(name)}">{small}{escape(last)}</th>'


def _row(board: Board, row: Row, rank: int | None, numeric: Mapping[str, bool]) -> str:
    kind = "lost" if row.is_lost else "best" if rank == 1 else ""
    overrides = row.overrides
    status = escape(row.outcome)
    if row.is_lost:
        status = f'<span class="failed" title="{escape(row.reason or "")}">{status}</span>'
    elif row.cached:
        status = f'<span title="the result of run {escape(row.cached)}">{status}</span>'
    cells = [
        _number(rank, None if rank is None else str(rank)),
        _number(row.number, str(row.number)),
        _number(row.value, number(row.value), "number value"),
        *(_text(overrides.get(key), is_number) for key, is_number in numeric.items()),
        *(_number(row.metrics.get(name), number(row.metrics.get(name))) for name in board.others),
        _number(row.epochs, number(row.epochs)),
        _number(row.seconds, duration(row.seconds)),
        f"<td>{status}</td>",
        f'<td class="id">{_copied(row.run_id) if row.run_id else ""}</td>',
    ]
    return f'<tr class="{kind}" data-job="{row.number}">{"".join(cells)}</tr>'


def _number(value: float | None, shown: str | None, kind: str = "number") -> str:
    """What is sorted by stands beside what is shown."""
    key = "" if value is None or not math.isfinite(value) else f"{value:.12g}"
    return f'<td class="{kind}" data-v="{key}">{MISSING if key == "" else shown}</td>'


def _text(value: str | None, is_number: bool) -> str:
    kind = "number" if is_number else "text"
    return (
        f'<td class="{kind}" data-v="">{MISSING}</td>'
        if value is None
        else f'<td class="{kind}">{escape(value)}</td>'
    )


def _copied(text: str) -> str:
    """Selected whole by one click."""
    return f'<code class="copy" title="{escape(text)}">{escape(text)}</code>'


def _panels(board: Board) -> str:
    if not board.columns or not board.ranked:
        return ""
    drawn = panels(board)
    single = " single" if len(drawn) == 1 else ""
    marks = ["orange: the best", "× failed" if board.lost else ""]
    marks.append("hollow: pruned" if any(row.status == "PRUNED" for row in board.rows) else "")
    marks.append("dashes: medians" if any(medians(board, axis) for axis in parameters(board)) else "")
    return (
        f"<section><h2>{escape(board.monitor)} against each parameter</h2>"
        f'<p class="quiet">{", ".join(filter(None, marks))}</p>'
        f'<div class="panels{single}">{"".join(drawn)}</div></section>\n'
    )


def _failed(board: Board) -> str:
    if not board.lost:
        return ""
    columns = board.columns
    items = []
    for row in board.lost:
        chosen = " ".join(f"{key}={row.overrides[key]}" for key in columns if key in row.overrides)
        log = f'<br><span class="quiet">log </span>{_copied(row.log)}' if row.log else ""
        items.append(
            f'<li data-job="{row.number}"><span class="failed">job {row.number} {row.status}</span> '
            f'<span class="quiet">{escape(chosen)}</span><br>{escape(row.reason or "it left no reason")}{log}</li>'
        )
    return f'<section><h2>Failed: {len(items)} of {len(board.rows)} jobs</h2><ul class="failed-list">{"".join(items)}</ul></section>\n'
