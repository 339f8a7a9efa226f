#!/usr/bin/env python3
"""perdure report in a headless Chromium, of a run that was killed and of 10,000 steps with restarts and three layouts, at 400 and 1600
pixels, light and dark: no error on the console, no text over another or cut off, nothing wider than the page, every chart with title, axes
and legend.  report_in_chromium.py PERDURE SOURCE

PERDURE_TEST_PICTURES=DIRECTORY keeps screenshots."""
import html
import json
import os
import re
import shutil
import subprocess
import sys

PERDURE, SOURCE = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
sys.path[:0] = [os.path.join(SOURCE, "tests", "helpers"), os.path.join(SOURCE, "tests", "e2e")]
import harness  # noqa: E402
import synthetic_run  # noqa: E402

CONFIG = """
run: {{seed: 5, steps: 60}}
model: {{family: llama, vocab: 256, context: 32, layers: 1, hidden: 64, heads: 2, kv_heads: 2, ffn: 128}}
data: {{train: [{data}], validation_fraction: 0.1}}
batch: {{sequences: 4, micro_batch: 1, context: 32}}
validation: {{every: 10, sequences: 4}}
checkpoint: {{every: 10}}
layout: {{threads: 1, ranks: 2, transport: local}}
restart: {{ranks: [1]}}
"""
# What a reader sees, measured where it is drawn: boxes of the texts of each visible drawing.
PROBE = """<script>
const found = [], seen = [];
const box = e => { const r = e.getBoundingClientRect(); return [r.left, r.top, r.right, r.bottom]; };
for (const svg of document.querySelectorAll('svg')) {
  if (getComputedStyle(svg).display === 'none') continue;
  const outer = box(svg), texts = [...svg.querySelectorAll('text')].map(t => [t.textContent, box(t)]);
  const title = svg.querySelector('text.h'), name = title ? title.textContent : '?';
  seen.push(name);
  for (const [words, b] of texts) {
    if (b[0] < outer[0] - 1 || b[2] > outer[2] + 2 || b[3] > outer[3] + 2) found.push(name + ': "' + words + '" is cut');
    if (b[3] - b[1] < 9) found.push(name + ': "' + words + '" is ' + (b[3] - b[1]).toFixed(1) + ' pixels high');
  }
  for (let i = 0; i < texts.length; i++) for (let k = 0; k < i; k++) {
    const a = texts[i][1], b = texts[k][1];
    const x = Math.min(a[2], b[2]) - Math.max(a[0], b[0]), y = Math.min(a[3], b[3]) - Math.max(a[1], b[1]);
    if (x > 1 && y > 3.5) found.push(name + ': "' + texts[i][0] + '" lies over "' + texts[k][0] + '"');
  }
  if (!title) found.push('a drawing without a title');
  if (svg.querySelectorAll('path.axis').length < 3) found.push(name + ': no axes');
  if (!svg.querySelector('.unit') && !name.startsWith('What was')) found.push(name + ': no unit');
  if (texts.length < 6) found.push(name + ': no legend');
}
if (document.documentElement.scrollWidth > innerWidth + 1) found.push('the page is ' + document.documentElement.scrollWidth + ' wide in ' + innerWidth);
const scheme = matchMedia('(prefers-color-scheme: dark)').matches ? 'dark' : 'light';
parent.postMessage(JSON.stringify({found, seen, scheme, page: document.title, width: innerWidth, ground: getComputedStyle(document.body).backgroundColor}), '*');
</script>"""
# A window is 500 pixels wide at least: a page is looked at in a frame, and all of them in one window.
FRAMES = """<!doctype html><style>:root{{color-scheme:light dark}}body{{margin:0}}iframe{{border:0;display:block}}</style>
<script>onmessage = e => {{ const out = document.createElement('pre'); out.className = 'probe'; out.textContent = e.data; document.body.append(out); }};</script>
<body>{frames}</body>"""
FRAME = '<iframe src="file://{path}" width="{width}" height="{height}"></iframe>'
HEIGHTS = {400: 5200, 1600: 3000}


def check(condition, what):
    if not condition:
        raise harness.Failure(what)


def chromium():
    return next((path for path in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if path), None)


def browse(workspace, frames, is_dark, arguments):
    """frames: (path, width)"""
    page = workspace.file("frames.html", FRAMES.format(frames="".join(
        FRAME.format(path=path, width=width, height=HEIGHTS[width]) for path, width in frames)))
    size = f"{max(w for _, w in frames)},{max(HEIGHTS[w] for _, w in frames)}"
    command = [chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
               f"--user-data-dir={workspace.path}/chromium", f"--window-size={size}", "--virtual-time-budget=10000",
               f"--blink-settings=preferredColorScheme={0 if is_dark else 1}", *arguments, f"file://{page}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def check_page(said, is_dark):
    where = f"{said['page']}, {said['width']} pixels, {'dark' if is_dark else 'light'}"
    check(said["scheme"] == ("dark" if is_dark else "light"), f"{where}: {said['scheme']}")
    check(said["ground"] == ("rgb(22, 22, 22)" if is_dark else "rgb(255, 255, 255)"), f"{where}: the ground is {said['ground']}")
    check(not said["found"], f"{where}: " + "; ".join(said["found"][:12]))
    check(len(said["seen"]) >= 9 and len(set(said["seen"])) == len(said["seen"]), f"{where}: charts {said['seen']}")


def look(workspace, pages, is_dark):
    frames = []
    for page in pages:
        with open(page, encoding="utf-8") as f:
            text = f.read()
        probed = workspace.file(os.path.basename(page) + "-probed.html", text.replace("</body>", PROBE + "</body>"))
        frames += [(probed, width) for width in HEIGHTS]
    result = browse(workspace, frames, is_dark, ["--dump-dom"])
    consoles = [line for line in result.stderr.splitlines() if "CONSOLE" in line]
    check(not consoles, f"the console says {consoles}")
    said = [json.loads(html.unescape(text)) for text in re.findall(r'<pre class="probe">(.*?)</pre>', result.stdout, re.S)]
    check(sorted((s["page"], s["width"]) for s in said) == sorted({(s["page"], w) for s in said for w in HEIGHTS}) and len(said) == len(frames),
          f"{len(said)} of {len(frames)} pages were seen: {result.stderr[-1500:]}")
    for one in said:
        check_page(one, is_dark)
    pictures = os.environ.get("PERDURE_TEST_PICTURES")
    for page in pages if pictures else []:
        for width in HEIGHTS:
            name = f"{os.path.basename(page)[:-5]}-{width}-{'dark' if is_dark else 'light'}.png"
            browse(workspace, [(page, width)], is_dark, [f"--screenshot={pictures}/{name}"])


def body(workspace, _):
    if not chromium():
        print("skipped: no Chromium here: apt-get install chromium")
        sys.exit(77)
    killed, long = workspace.directory("killed"), workspace.directory("long")
    config = workspace.file("run.yaml", CONFIG.format(data=workspace.file("text.txt", harness.text_of(30000))))
    workspace.train(config, killed, environment={"PERDURE_FAULT": "worker.stepped:70:kill", "PERDURE_FAULT_ONCE": workspace.path + "/once"})
    synthetic_run.write(long, 10000)
    pages = []
    for name, runs in (("killed", [killed]), ("long", [long]), ("both", [killed, long])):
        pages.append(os.path.join(workspace.path, f"{name}.html"))
        result = workspace.command(["report", *runs, "-o", pages[-1]])
        check(result.returncode == 0, result.stderr)
    for is_dark in (False, True):
        look(workspace, pages, is_dark)
    print("three reports, two widths, two schemes: nothing overlaps, nothing is cut, the console is quiet")


if __name__ == "__main__":
    sys.argv[2:] = []
    sys.exit(harness.main(body))
