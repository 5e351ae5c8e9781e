# SPDX-License-Identifier: GPL-2.0-only
"""Makes docs/img/top.png: `tandem top` of a scheduler that runs in a guest. It is looked at before it is committed.

usage: pictures.py BUILD_DIR      takes 3 minutes; needs tmux besides what `./run build` installs

Pictures of reports: `python3 tests/reports.py build DIR` leaves them in DIR.
"""

import html
from pathlib import Path
import re
import subprocess
import sys
import tempfile
import time

from browser import Browser

ROOT = Path(__file__).resolve().parent.parent
COLUMNS, ROWS = 120, 36
LEAVES = b"\x1b[?1049l"
# Standard colours of terminals, by number, on a dark ground.
COLOURS = {1: "#f1746c", 2: "#67c981", 3: "#e0b84f"}
SCREEN = """<!DOCTYPE html><meta charset="utf-8"><style>
body { margin: 0; background: #16191d; color: #d7dbe0; }
pre { display: inline-block; margin: 0; padding: 12px; font: 14px/1.25 "DejaVu Sans Mono", monospace; }
</style><pre>%s</pre>"""
CODES = re.compile(r"\x1b\[([0-9;]*)m")
# Three programs on four nodes, two of them with memory elsewhere than their threads; then the tree of threads.
GUEST = f"""
mkdir -p /out
scx_tandem --interval-ms 1000 --sampler-budget 10 --mover-budget 20 > /out/scx_tandem.log 2>&1 &
sleep 3
tandem-load crossed --passes 2000 > /dev/null 2>&1 &
tandem-load pairs --threads 4 --passes 4000 > /dev/null 2>&1 &
sleep 15
export TERM=xterm-256color
(sleep 40; printf tt; sleep 25; printf q; sleep 2) |
	timeout 100 script -qf -c 'stty cols {COLUMNS} rows {ROWS}; exec tandem top --interval 2' /out/top > /dev/null
kill %1
"""


def styled(codes, style):
    """The style (bold, reversed, colour) after a sequence of terminal codes."""
    bold, reverse, colour = style
    numbers = [int(code or 0) for code in codes.split(";")]
    while numbers:
        number = numbers.pop(0)
        if number == 0:
            bold, reverse, colour = False, False, None
        elif number == 38:
            colour = numbers[1]
            numbers = numbers[2:]
        elif number in (1, 7, 27, 39):
            bold, reverse = bold or number == 1, number == 7 or (reverse and number != 27)
            colour = None if number == 39 else colour
    return bold, reverse, colour


def screen(text):
    """A page of what `tmux capture-pane -e` printed."""
    style, parts = (False, False, None), []
    for at, part in enumerate(CODES.split(text)):
        if at % 2:
            style = styled(part, style)
            continue
        bold, reverse, colour = style
        css = "font-weight:bold;" * bold + "background:#d7dbe0;color:#16191d;" * reverse
        css += f"color:{COLOURS[colour]};" if colour in COLOURS else ""
        parts.append(f'<span style="{css}">{html.escape(part)}</span>')
    return SCREEN % "".join(parts)


def top(build, folder):
    """A picture of `tandem top` of a running scheduler with four nodes."""
    command = [ROOT / "vm/lab.py", "run", "--quiet", "--machine", ROOT / "vm/machines/4x2-ring.toml", "--timeout", "600",
               "--out", folder, "--add", "/usr/bin/script"]
    command += [word for name in ("scx_tandem", "tandem", "tandem-load") for word in ("--add", build / "bin" / name)]
    subprocess.run([*command, "--", "sh", "-c", GUEST], check=True)
    recorded = (folder / "top").read_bytes()
    last = folder / "last"
    # Up to where it gives the terminal back.
    last.write_bytes(recorded[:recorded.rindex(LEAVES)])
    tmux = ["tmux", "-L", f"pictures-{folder.name}"]
    subprocess.run([*tmux, "new-session", "-d", "-x", str(COLUMNS), "-y", str(ROWS), f"cat {last}; sleep 60"], check=True)
    time.sleep(2)
    shown = subprocess.run([*tmux, "capture-pane", "-e", "-p", "-N"], capture_output=True, text=True, check=True).stdout
    subprocess.run([*tmux, "kill-server"], check=True)
    page = folder / "top.html"
    page.write_text(screen(shown))
    with Browser("dark", 1060, 800) as browser:
        browser.open(page)
        (ROOT / "docs/img/top.png").write_bytes(browser.picture(browser.all("pre")[0]))


def main():
    with tempfile.TemporaryDirectory() as folder:
        top(Path(sys.argv[1]), Path(folder))


main()
