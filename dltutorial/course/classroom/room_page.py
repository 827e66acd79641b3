"""One self-contained page of a class: whom to go and see, what to explain next, where everybody is.

In: a ``Room`` and the course's own words. Out: HTML. All text from records passes
through ``markup.text``; the page loads nothing, and its policy lets no script run.
"""

import time
from pathlib import Path

from dltutorial.course.classroom import markup, room_sections
from dltutorial.course.classroom import room as rooms
from dltutorial.course.classroom.room import Misconception, Person, Room
from dltutorial.course.classroom.room_sections import SIGNS
from dltutorial.course.classroom.wording import Wording

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_MOST_SHOWN = 12  # on the first screen; all the others are further down
_FEW_CHIPS = 80  # more people than that are dots without names


def page(room: Room, words: Wording, refresh_s: float | None = None) -> str:
    """The whole page; with ``refresh_s`` the browser loads it again that often."""
    css = Path(__file__).with_name("room.css").read_text(encoding="utf-8")
    again = f'<meta http-equiv="refresh" content="{max(1, round(refresh_s))}">' if refresh_s else ""
    parts = [_explain, _visit, _where, *room_sections.ALL]
    body = "\n".join(part(room, words) for part in parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">{again}'
        f"<title>The class now</title><style>{css}</style></head><body>\n"
        f"{_header(room, words)}\n<main>{body}</main>\n"
        "<footer>Made by dltutorial class view, from the files of one folder. Learners share by their own choice, "
        "under names of their own; what learners wrote is shown as text and nothing else.</footer></body></html>\n"
    )


def _header(room: Room, words: Wording) -> str:
    n = len(room.people)
    title = f"{markup.plural(n, 'learner')}, {markup.plural(room.count('stuck'), 'stuck', 'stuck')}"
    if room.middle:
        title += f"; the middle of the room is in {_chapter(room.middle, words)}"
    counts = "".join(
        f'<li class="{state}"><b>{room.count(state)}</b> <span>{SIGNS[state]} {told}</span></li>'
        for state, told in (
            ("stuck", f"stuck: wrong {rooms.STUCK_AFTER} times in a row"),
            ("quiet", f"quiet: nothing for {rooms.QUIET_MIN:.0f} min"),
            ("working", "working"),
            ("away", f"away for {rooms.AWAY_MIN / 60:.0f} h, or not begun"),
        )
    )
    at = time.strftime("%H:%M", time.localtime(room.at_s))
    unread = f' <a href="#unread">{markup.plural(len(room.problems), "file")} to look at</a>' if room.problems else ""
    return f"<header><h1>{markup.text(title)}</h1><p>As of {at}.{unread}</p><ul>{counts}</ul></header>"


def _explain(room: Room, words: Wording) -> str:
    now = [one for one in room.misconceptions if one.still]
    if not room.misconceptions:
        return markup.section(
            "Explain next", "No check has failed yet", "<p>Once one does, its misconception stands here.</p>"
        )
    shown = (now or list(room.misconceptions))[:5]
    counts = [len(one.still) if now else len(one.ever) for one in shown]
    finding = "Nobody is at a mistake now; these were made"
    if now:
        finding = f"{counts[0]} learners are at the same mistake" if counts[0] > 1 else "No two are at the same mistake"
    items = "".join(
        f'<li><b class="count">{count}</b><div>{markup.bar(count, len(room.people))}<p>{room_sections.mistake(one)}</p>'
        f'<p class="note">{markup.text(one.exercise)}, chapter {markup.text(one.chapter)}'
        f"{_earlier(one) if now else ''}</p></div></li>"
        for one, count in zip(shown, counts, strict=True)
    )
    return markup.section("Explain next", finding, f'<ol class="mistakes">{items}</ol>', "explain")


def _earlier(one: Misconception) -> str:
    over = len(set(one.ever) - set(one.still))
    return f"; {markup.plural(over, 'other')} got over it" if over else ""


def _visit(room: Room, words: Wording) -> str:
    stuck = sorted((p for p in room.people if p.state == "stuck"), key=lambda p: -p.wrong_in_a_row)
    quiet = sorted((p for p in room.people if p.state == "quiet"), key=lambda p: -p.idle_min)
    if not stuck and not quiet:
        return markup.section("Go and see", "Nobody seems to need you just now", "", "visit")
    items = [
        f'<li class="{p.state}"><b>{SIGNS[p.state]} {markup.text(p.name)}</b> <span>{_why(p)}</span></li>'
        for p in [*stuck, *quiet]
    ]
    more = f'<p class="note">and {len(items) - _MOST_SHOWN} more: see everybody, below</p>' * (len(items) > _MOST_SHOWN)
    counts = ((len(stuck), "stuck"), (len(quiet), "quiet"))
    finding = ", ".join(f"{n or 'nobody'} {'are' if n > 1 else 'is'} {state}" for n, state in counts).capitalize()
    return markup.section(
        "Go and see", finding, f'<ul class="visit">{"".join(items[:_MOST_SHOWN])}</ul>{more}', "visit"
    )


def _why(person: Person) -> str:
    if person.state == "stuck":
        times = f"wrong {person.wrong_in_a_row} times in a row"
        return f"{markup.text(person.exercise)}, {times}: <i>{markup.text(person.problem)}</i>"
    after = f", last on {markup.text(person.exercise)}" if person.exercise else ""
    return f"nothing for {person.idle_min:.0f} min in chapter {markup.text(person.chapter)}{after}"


def _where(room: Room, words: Wording) -> str:
    begun = [p for p in room.people if p.chapter]
    if not begun:
        return markup.section("Where everybody is", "Nobody has begun", "", "wide")
    rows = []
    for chapter in sorted({p.chapter for p in begun}):
        here = sorted((p for p in begun if p.chapter == chapter), key=lambda p: (rooms.STATES.index(p.state), p.name))
        chips = "".join(_chip(p, len(begun) <= _FEW_CHIPS) for p in here)
        rows.append(
            f'<li><b>{markup.text(chapter)}</b><span class="title">{markup.text(words.titles.get(chapter, ""))}</span>'
            f'<b class="number">{len(here)}</b><div class="chips">{chips}</div></li>'
        )
    late = len(room.people) - len(begun)
    note = (
        f'<p class="note">{markup.plural(late, "learner has", "learners have")} recorded nothing yet.</p>'
        if late
        else ""
    )
    lowest, highest = min(p.chapter for p in begun), max(p.chapter for p in begun)
    finding = f"From chapter {lowest} to chapter {highest}" if lowest < highest else f"All in chapter {lowest}"
    return markup.section("Where everybody is", finding, f'<ul class="where">{"".join(rows)}</ul>{note}', "wide")


def _chip(person: Person, named: bool) -> str:
    told = f"{person.name}: {person.state}, {person.idle_min:.0f} min since the last record"
    name = f" {markup.text(person.name)}" if named else ""
    minutes = f" {person.idle_min:.0f}′" if named and person.state == "quiet" else ""
    return f'<span class="chip {person.state}" title="{markup.text(told)}">{SIGNS[person.state]}{name}{minutes}</span>'


def _chapter(number: str, words: Wording) -> str:
    title = words.titles.get(number)
    return f"chapter {number}, {title}" if title else f"chapter {number}"
