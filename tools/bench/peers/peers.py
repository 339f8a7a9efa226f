#!/usr/bin/env python3
"""perdure beside what people use today, in turn, on this machine. One table, or JSON."""
import json
import os
import platform
import signal
import subprocess
import sys
import time

import peer

PEERS = ("torch_save", "safetensors_file", "torch_dcp", "torch_writer", "torch_convert", "deepspeed_convert", "torch_adam", "deepspeed_adam",
         "deepspeed_nvme", "torch_step", "torch_exchange", "torch_s3")
VERSIONS = "import importlib.metadata as m\nfor n in ('torch', 'safetensors', 'transformers', 'deepspeed', 's3torchconnector'):\n try: print(n, m.version(n))\n except m.PackageNotFoundError: pass"


def options():
    p = peer.parser(__doc__)
    p.add_argument("--only", default=",".join(PEERS), help="files of this folder, with commas between")
    p.add_argument("--limit", default=1800, type=int, help="seconds of one file: compiling takes minutes the first time")
    p.add_argument("--json", action="store_true", help="the result as JSON on stdout")
    return p.parse_args()


def end_all(process):
    """Ranks of its own too."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def start(name, o):
    """Exit code, stdout, stderr; None, where it took too long."""
    given = [f"--{key}={getattr(o, key)}" for key, *_ in peer.OPTIONS]
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
    process = subprocess.Popen([sys.executable, "-B", path, o.perdure, *given], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               start_new_session=True)
    try:
        said, errors = process.communicate(timeout=o.limit)
        return process.returncode, said, errors
    except subprocess.TimeoutExpired:
        end_all(process)
        return None, "", f"not done within {o.limit} s (--limit)"
    except BaseException:
        end_all(process)
        raise


def run(name, o):
    """Its rows; what is left out, where there are none."""
    code, said, errors = start(name, o)
    if code == 0:
        return json.loads(said), None
    last = (errors.strip().splitlines() or ["it said nothing"])[-1]
    if code == peer.FAILED:
        sys.exit(f"{name}: {last}")
    return [], {"peer": name, "reason": last if code is None or code > 0 else f"killed by signal {-code}"}


def processor():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        return next((line.split(":")[1].strip() for line in f if line.startswith("model name")), platform.machine())


def about(o):
    versions = subprocess.run([sys.executable, "-c", VERSIONS], capture_output=True, text=True, check=False).stdout
    return {"date": time.strftime("%Y-%m-%d"), "processor": processor(), "threads": o.threads, "load": os.getloadavg()[0],
            "versions": dict(line.split() for line in versions.splitlines()), "bytes": peer.bytes_of(o.bytes), "preset": o.preset,
            "tokens": o.tokens}


def show(result):
    print(f"{result['date']}, {result['threads']} threads of {result['processor']}, load {result['load']:.1f}; "
          + ", ".join(f"{n} {v}" for n, v in result["versions"].items()))
    print("\nmedians, and from the least to the most; in seconds where nothing else is said. Below 1 perdure is faster; nothing is faster than the bare disk.\n"
          "\n| peer | what | perdure | peer | bare disk | perdure / peer | perdure / disk | what is unfair |\n|---|---|---|---|---|---|---|---|")
    for r in result["rows"]:
        seconds = [f"{r[of + '_seconds']:.3g} ({r[of + '_low']:.3g}–{r[of + '_high']:.3g})" if of + "_seconds" in r else "–" for of in ("perdure", "peer", "disk")]
        to_disk = f"{r['perdure_seconds'] / r['disk_seconds']:.2f}" if "disk_seconds" in r else "–"
        print(f"| {r['peer']} | {r['row']} | {' | '.join(seconds)} | {r['ratio']:.2f} ({r['ratio_low']:.2f}–{r['ratio_high']:.2f}) | {to_disk} "
              f"| {r['unfair']} |")
    for left_out in result["left_out"]:
        print(f"\nleft out: {left_out['peer']}: {left_out['reason']}")


def main():
    o = options()
    result = {**about(o), "pairs": o.pairs, "rows": [], "left_out": []}
    for name in o.only.split(","):
        print(f"peers: {name}", file=sys.stderr)
        rows, left_out = run(name, o)
        result["rows"] += rows
        result["left_out"] += [left_out] if left_out else []
    if o.json:
        print(json.dumps(result))
    else:
        show(result)


if __name__ == "__main__":
    main()
