#!/usr/bin/env python3
"""perdure report: what the page says is what the files say; nothing in it comes from elsewhere; no name and no damage breaks it; its size
does not grow with the steps."""
import html.parser
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

PERDURE, SOURCE = os.path.abspath(sys.argv[1]), sys.argv[2]
sys.path.insert(0, os.path.join(SOURCE, "tests", "helpers"))
import synthetic_run  # noqa: E402

VOID = {"meta", "link", "path", "circle", "rect"}
failures = 0


def check(condition, what):
    global failures
    if not condition:
        failures += 1
        print(f"FAILED: {what}", file=sys.stderr)


def report(arguments, expect=0):
    result = subprocess.run([PERDURE, "report", *arguments], capture_output=True, text=True, timeout=600, check=False)
    check(result.returncode == expect, f"report {arguments}: exit {result.returncode}, not {expect}: {result.stderr}")
    return result


class Page(html.parser.HTMLParser):
    """Elements are closed in their order; nothing is loaded or run."""

    def __init__(self, path):
        super().__init__()
        self.open, self.texts, self.titles, self.tables, self.current = [], [], [], [], ""
        with open(path, encoding="utf-8") as f:
            self.feed(f.read())
        check(not self.open, f"{path}: left open: {self.open}")

    def handle_starttag(self, tag, attributes):
        check(tag not in ("script", "img", "iframe", "object", "embed"), f"the page has a {tag}")
        for name, value in attributes:
            check(not name.startswith("on") and (name not in ("href", "src") or value == "data:,"), f"{tag} {name}={value}")
        if tag not in VOID:
            self.open.append((tag, dict(attributes).get("class", "")))

    def handle_endtag(self, tag):
        if tag in VOID:
            return
        check(self.open and self.open[-1][0] == tag, f"</{tag}> ends {self.open[-1:]}")
        if self.open:
            self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1][0] == "style":
            check("url(" not in data and "@import" not in data, "the style loads something")
        self.texts.append(data)


def rows_of(directory):
    """The last line of a step counts."""
    with open(os.path.join(directory, "metrics.jsonl"), encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    return rows, sorted({row["step"]: row for row in rows}.values(), key=lambda row: row["step"])


def numbers(folder):
    run = os.path.join(folder, "synthetic")
    synthetic_run.write(run, 1500, 7)
    every, counted = rows_of(run)
    said = json.loads(report([run, "--json"]).stdout)["runs"][0]
    check(said["step"] == 1500 and said["loss"] == counted[-1]["loss"], f"the last step is {said['step']} with loss {said['loss']}")
    check(said["lines"] == len(every) and said["lost_steps"] == len(every) - 1500, f"{said['lost_steps']} steps lost of {len(every)}")
    check(said["best_validation_loss"] == min(row["validation_loss"] for row in every if "validation_loss" in row), "best validation loss")
    check(said["memory_bytes_max"] == max(row["memory_bytes"] for row in every), "most memory")
    check(abs(said["step_seconds_median"] - statistics.median_low(row["seconds"] for row in every)) < 1e-9, "median of a step")
    check([s["ranks"] for s in said["starts"]] == [8, 8, 6, 6, 4, 4] and said["failures"] == 5, f"starts {said['starts']}")
    check(said["starts"][0]["cause"] == synthetic_run.CAUSES[0] and said["starts"][-1]["exit_code"] == 0, "causes")
    parts = said["seconds"]
    check(abs(sum(v for k, v in parts.items() if k != "whole") - parts["whole"]) < 1e-6, f"seconds do not add up: {parts}")
    check(abs(parts["lost"] - sum(s["lost_seconds"] for s in said["starts"])) < 1e-6 and 0 < said["goodput"] < 1, f"lost: {parts}")
    return run


def page(folder, run):
    path = os.path.join(folder, "page.html")
    report([run, "-o", path])
    text = " ".join(Page(path).texts)
    for words in ("Loss", "nats a token", "Gradient norm", "Learning rate", "Speed", "Time of a step", "Memory", "perdure plan shows how much", "Saves", "Steps that are not saved yet",
                  "What was done when", "8 ranks, dp 8", "4 ranks, tp 2 pp 2", "/nvme/mine/checkpoints", *synthetic_run.CAUSES[:2]):
        check(words in text, f"the page lacks {words}")
    stdout = report([run, "-o", "-"]).stdout
    check(stdout.startswith("<!doctype html>") and stdout.endswith("</html>\n"), "-o - is not the page")


def hostile(folder, run):
    """Names and causes are text; a damaged, an empty and an unfinished run are drawn."""
    odd = os.path.join(folder, "<script>alert(1)</script>&amp")
    shutil.copytree(run, odd)
    with open(os.path.join(odd, "metrics.jsonl"), "a", encoding="utf-8") as f:
        f.write('{"step":1501,"lo\n\x00\xff garbage\n{"step":"x"}\n[1]\n{"step":1501,"loss":null,"seconds":"inf","fence":6,"time":null}\n{"step":1502')
    with open(os.path.join(odd, "events.jsonl"), "a", encoding="utf-8") as f:
        f.write('{"event":"start","time":1700100000,"ranks":2}\n{"event":"end","cause":"<b>&\\u0001 broke</b>","exit_code":74,"time":1700100001}\n'
                '{"event":"of tomorrow"}\nnothing\n')
    path = os.path.join(folder, "odd.html")
    report([odd, "-o", path])
    text = " ".join(Page(path).texts)
    check("<b>&  broke" in text or "<b>& broke" in text, "the cause is not there as it is written")
    said = json.loads(report([odd, "--json"]).stdout)["runs"][0]
    check(said["damaged_lines"] == 5 and said["step"] == 1501 and said["loss"] is not None, f"damaged: {said['damaged_lines']}, step {said['step']}")
    empty = os.path.join(folder, "empty")
    os.makedirs(empty)
    open(os.path.join(empty, "metrics.jsonl"), "w").close()
    report([empty, "-o", path])
    Page(path)
    shutil.copy(os.path.join(run, "events.jsonl"), empty)  # starts that did no step
    os.truncate(os.path.join(empty, "events.jsonl"), 600)
    report([empty, "-o", path])
    Page(path)
    old = os.path.join(folder, "old")  # of before there were events
    shutil.copytree(run, old)
    os.unlink(os.path.join(old, "events.jsonl"))
    said = json.loads(report([old, "--json"]).stdout)["runs"][0]
    check(len(said["starts"]) == 6 and said["starts"][1]["lost_steps"] > 0, "a run without events has the starts of its lines")
    report([odd, run, old, empty, "-o", path])
    Page(path)


def overlaid(folder, run):
    """Where two runs start at one place, the label is that of the run which stays there longer, whoever is named first."""
    short, path = os.path.join(folder, "short"), os.path.join(folder, "overlaid.html")
    synthetic_run.write(short, 30, 2, 1)
    for runs in ((short, run), (run, short)):
        report([*runs, "-o", path])
        labels = [text for text in Page(path).texts if ": 8 ranks, dp 8" in text]
        check(labels and all(text.startswith(os.path.basename(run)) for text in labels), f"of {runs} the charts name {set(labels)}")


def write_run(directory, rows, events=()):
    os.makedirs(directory)
    for name, lines in (("metrics.jsonl", rows), ("events.jsonl", events)):
        with open(os.path.join(directory, name), "w", encoding="utf-8") as f:
            f.writelines((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    return directory


def chart_of(path, title):
    """The wide drawing of a chart."""
    with open(path, encoding="utf-8") as f:
        return next((svg for svg in f.read().split("<svg ") if f"><title>{title}<" in svg and 'class="w"' in svg), "")


def drawn(folder, name, rows, events=()):
    path, run = os.path.join(folder, f"{name}.html"), write_run(os.path.join(folder, name), rows, events)
    result = report([run, "-o", path])
    with open(path, encoding="utf-8") as f:
        text = f.read()
    check(not any(word in text for word in ('"nan', '"-nan', '"inf', '"-inf', "inf %", "nan %")), f"{name}: a number that is none is drawn")
    return path, json.loads(report([run, "--json"]).stdout)["runs"][0], result.stderr, " ".join(Page(path).texts)


def row(step, fence=1, **more):
    return {"step": step, "loss": 3 - step / 100, "seconds": 1, "fence": fence, "time": 1700000000 + 10 * fence + step, **more}


def start(fence, step, tiers, **more):
    return [{"event": "start", "time": 1700000000 + 10 * fence + step, "ranks": 1},
            {"event": "open", "time": 1700000000 + 10 * fence + step, "fence": fence, "step": step, "ranks": 1, "checkpoint_bytes": 1 << 20, "tiers": tiers, **more}]


def tiers(folder):
    """A save counts where a restart computed its step again, and at the end of a run; each tier has its own."""
    def dirs(*newest):
        return [{"dir": d, "newest": n} for d, n in zip(("/quick", "/slow"), newest)]
    saved = {1: {1: (0, 0), 2: (2, 0), 3: (2, 0), 4: (4, 4), 5: (4, 4), 6: (6, 4)}, 2: {5: (4, 4), 6: (6, 4), 7: (6, 4)}}
    rows = [row(step, fence, tiers=[{"newest": n, **({"seconds": 0.25 * n} if n > 2 else {})} for n in newest], **({"save_seconds": 0.5, "stall_seconds": 0.1} if step % 2 == 0 else {}))
            for fence, steps in saved.items() for step, newest in steps.items()]
    events = start(1, 0, dirs(0, 0)) + [{"event": "end", "time": 1700000020, "exit_code": 75, "cause": "x", "restarts": True}] + start(2, 4, dirs(4, 4)) + [
        {"event": "leave", "step": 8, "tiers": dirs(8, 8)}, {"event": "end", "time": 1700000040, "exit_code": 0, "restarts": False}]
    path, said, _, _ = drawn(folder, "tiers", rows, events)
    check([(t["directory"], t["saves"], t["newest_step"]) for t in said["tiers"]] == [("/quick", 5, 8), ("/slow", 2, 8)], f"tiers: {said['tiers']}")
    check([(t["seconds_mean"], t["seconds_max"]) for t in said["tiers"]] == [(1.25, 1.5), (1, 1)], f"seconds of tiers: {said['tiers']}")
    svg = chart_of(path, "Saves")
    marks = [sum(part.split('"')[0].count("v7") for part in svg.split(f'class="l{colour}" d="')) for colour in (2, 3)]
    check(svg.count('class="p0"') == 4 + 1 and marks == [5, 2], f"saves drawn: {svg.count('p0')}, ticks {marks}")  # two at step 6, once in the legend
    only = [row(step, last_checkpoint=step // 2 * 2) for step in range(1, 5)]
    said = drawn(folder, "only", only, start(1, 0, [{"dir": "/only", "newest": 0}]) + [{"event": "leave", "step": 5, "tiers": [{"dir": "/only", "newest": 5}]}])[1]
    check([(t["saves"], t["newest_step"]) for t in said["tiers"]] == [(3, 5)], f"one tier: {said['tiers']}")


def experts(folder):
    """The worst and the median block of each step are drawn, a table has the blocks of the last; without experts there is neither."""
    def blocks(step, biased=True):
        return [{"block": b, "busiest": 0.2 + 0.1 * b, "idlest": 0.05 * b, "entropy": 2 - 0.1 * b * step, **({"bias_range": 0.01 * step} if biased else {})}
                for b in (1, 2, 3)]
    path, said, _, text = drawn(folder, "experts", [row(step, experts=blocks(step)) for step in range(1, 5)])
    check(said["experts"] == blocks(4), f"experts: {said.get('experts')}")
    for title, lines in (("Tokens of the busiest and the idlest expert", 4), ("Entropy of the choice of experts", 2), ("Range of the selection bias", 2)):
        svg = chart_of(path, title)
        drawn_lines = re.findall(r'class="l\d( dash)?" d="M[0-9.]+ [0-9.]+(?:L[0-9.]+ [0-9.]+){3}"', svg)
        check(len(drawn_lines) == lines and drawn_lines.count(" dash") == lines // 2, f"{title}: lines {drawn_lines}")
    check("L710.0 220.6" in chart_of(path, "Entropy of the choice of experts"), "the lowest entropy, 0.8 at step 4, is not drawn there")
    check("50 %" in text and "1.2000" in text and "Experts at the last step" in text, "the table of experts lacks a block")
    path, _, _, text = drawn(folder, "softmax", [row(step, experts=blocks(step, False)) for step in range(1, 5)])
    check("Entropy of the choice" in text and "selection bias" not in text, "a bias that there is not is drawn")
    report([os.path.join(folder, "experts"), os.path.join(folder, "softmax"), "-o", path])
    check("busiest" in " ".join(Page(path).texts), "two runs with experts")
    _, said, _, text = drawn(folder, "dense", [row(step) for step in range(1, 5)])
    check("xpert" not in text and "experts" not in said, "experts of a dense model")


def not_finite(folder):
    rows = [row(1), row(2), *(row(step, skipped=step - 2) | {"loss": None} for step in (3, 4, 5))]
    path, said, _, text = drawn(folder, "diverged", rows)
    check("not finite since step 3; 3 skipped" in text and said["loss_not_finite_since"] == 3 and said["skipped_steps"] == 3, f"a run that diverged: {said}")
    report([os.path.join(folder, "diverged"), os.path.join(folder, "tiers"), "-o", path])
    check("not finite since step 3; 3 skipped" in " ".join(Page(path).texts), "the table of runs says nothing of a loss that is not finite")
    text = drawn(folder, "recovered", [*rows, row(6, skipped=3)])[3]
    check("not finite" not in text and "3 steps skipped" in text, "a loss is finite again")


def impossible(folder):
    """Lines without a time, and with numbers that no run measured."""
    missing = row(2)
    del missing["time"]
    _, said, _, text = drawn(folder, "untimed", [missing, row(3), missing | {"step": 4}], start(1, 0, []))
    check(said["step"] == 4 and "What was done when" in text, "a run with lines without a time has its timeline")
    drawn(folder, "vast", [row(1, seconds=1e308), row(2, time=1e308), row(3, loss=1e308, save_seconds=1e308, memory_bytes=1e308),
                           row(4, stages={"forward": 1e308, "backward": -1e308, "sums": 1e308, "update": 1e308}), row(5, time=-1e308)],
          start(1, 0, []) + [{"event": "end", "time": 1e308, "exit_code": 0}])
    _, said, stderr, text = drawn(folder, "unread", [row(1), *["{" for _ in range(60)]])
    check(said["damaged_lines"] == 60 and "60 lines could not be read" in stderr and "60 lines could not be read" in text, f"lines that cannot be read: {stderr}")


def named(folder):
    """Runs whose directories have one name are called by their paths."""
    path = os.path.join(folder, "named.html")
    runs = [write_run(os.path.join(folder, at), [row(1), row(2)]) for at in ("exp1/run", "exp2/run", "deep/exp1/run", "other")]
    report([*runs, "-o", path])
    titles = Page(path).texts
    check(any(", ".join([*runs[:3], "other"]) in text for text in titles), f"the page names {titles[:3]}")


def blocked(folder, run):
    pipe = os.path.join(folder, "pipe")
    shutil.copytree(run, pipe)
    os.mkfifo(os.path.join(pipe, "config.yaml"))
    result = subprocess.run([PERDURE, "report", pipe, run, "-o", os.path.join(folder, "pipe.html")], capture_output=True, text=True, timeout=60, check=False)
    check(result.returncode == 0, f"a config.yaml that is a pipe: {result.returncode}, {result.stderr}")


def crowded(folder):
    """Of layouts without room for all their names the charts say how many there are."""
    rows, events = [], []
    for i in range(12):
        rows.append(row(i + 1, i + 1))
        events += start(i + 1, i, [], dp=i % 3 + 1, tp=2)
    path = drawn(folder, "crowded", rows, events)[0]
    check("3 layouts, see the table" in chart_of(path, "Loss"), "layouts without room are dropped without a word")


def refused(folder, run):
    for arguments, code, words in (([], 64, "report needs the run.dir"), ([os.path.join(folder, "none")], 78, "is not a directory"),
                                   ([folder], 78, "neither metrics.jsonl nor events.jsonl"),
                                   ([run, "-o", os.path.join(folder, "no", "way.html")], 78, "No such file or directory; name another file with -o FILE"),
                                   ([run] * 9, 64, f'"{run}" is one path too many: at most 8;'),
                                   ([run, "--json", "-o", "-"], 64, "--json and --output=- both write to stdout")):
        result = report(arguments, code)
        check(words in result.stderr, f"report {arguments} says {result.stderr}")
    check("up to 8 runs" in " ".join(report(["--help"]).stdout.split()), "--help says how many runs there may be")


def large(folder):
    run, path = os.path.join(folder, "large"), os.path.join(folder, "large.html")
    synthetic_run.write(run, 100000, 3)
    report([run, "-o", path])
    check(os.path.getsize(path) < 3 << 20, f"a page of 100,000 steps has {os.path.getsize(path)} bytes")


def full(folder, run, option, said):
    """What is named is a device: it is still there afterwards."""
    link = os.path.join(folder, "full")
    os.symlink("/dev/full", link)
    result = subprocess.run([PERDURE, "report", run, option, link], capture_output=True, text=True, timeout=600, check=False)
    check(result.returncode == 74 and said in result.stderr and os.path.islink(link), f"{option} on a full disk: {result.returncode}, {result.stderr}")
    os.unlink(link)


def gaps(temporary):
    """No line over steps that are missing; and a smoothed loss beside the loss."""
    directory, page = os.path.join(temporary, "gap"), os.path.join(temporary, "gap.html")
    os.makedirs(directory)
    with open(os.path.join(directory, "metrics.jsonl"), "w", encoding="utf-8") as file:
        for step in [*range(1, 51), *range(90, 140)]:
            file.write(json.dumps({"step": step, "fence": 1, "time": 1000.0 + step, "loss": 9 - step / 40 + step % 3, "seconds": 1.0}) + "\n")
    report([directory, "-o", page])
    with open(page, encoding="utf-8") as file:
        text = file.read()
    line = re.search(r'<path class="l0 thin" d="([^"]*)"', text)
    check(line and line[1].count("M") == 2, f"a gap is a line: {line and line[1][:60]}")
    check("smoothed" in text, "no smoothed loss")


def noise(temporary):
    """Files of which no line can be read are no run's; one line that can be makes a page."""
    directory = os.path.join(temporary, "noise")
    os.makedirs(directory)
    for name in ("metrics.jsonl", "events.jsonl"):
        with open(os.path.join(directory, name), "wb") as file:
            file.write(bytes((i * i * 197 + i // 7 * 31) % 256 for i in range(40000)))
    page = os.path.join(temporary, "noise.html")
    said = report([directory, "-o", page], 65).stderr
    check("lines in metrics.jsonl and events.jsonl none can be read" in said, said)
    check(not os.path.exists(page), "a page of nothing")
    with open(os.path.join(directory, "metrics.jsonl"), "ab") as file:
        file.write(b'\n{"step": 1, "loss": 2.0}\n')
    report([directory, "-o", page])


with tempfile.TemporaryDirectory(prefix="perdure-report-") as temporary:
    synthetic = numbers(temporary)
    page(temporary, synthetic)
    hostile(temporary, synthetic)
    overlaid(temporary, synthetic)
    tiers(temporary)
    experts(temporary)
    not_finite(temporary)
    impossible(temporary)
    named(temporary)
    blocked(temporary, synthetic)
    crowded(temporary)
    refused(temporary, synthetic)
    full(temporary, synthetic, "-o", "No space left on device; name another file with -o FILE")
    gaps(temporary)
    noise(temporary)
    large(temporary)
print("failed" if failures else "report: the page says what the files say")
sys.exit(failures > 0)
