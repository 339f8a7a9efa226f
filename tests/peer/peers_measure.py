#!/usr/bin/env python3
"""tools/bench/peers at its smallest: every file has rows or a reason, a row's numbers fit each other, perdure's failure is an error.

usage: peers_measure.py PERDURE SOURCE

PERDURE_PEER_PYTHON names an interpreter that has torch; what else it lacks is left out. Exit 77: there is none."""
import json
import os
import subprocess
import sys
import tempfile

PERDURE, PEERS = os.path.abspath(sys.argv[1]), os.path.join(os.path.abspath(sys.argv[2]), "tools", "bench", "peers")
PYTHON = os.environ.get("PERDURE_PEER_PYTHON", sys.executable)
FAST = ("torch_save", "safetensors_file", "torch_adam", "torch_dcp", "torch_writer", "torch_convert", "torch_s3")  # nothing is compiled
NUMBERS = ("perdure_seconds", "peer_seconds", "ratio", "ratio_low", "ratio_high")
ON_DISK = ("save", "load", "save of a file", "load of a file")  # of perdure's writer: what the disk bounds, as it does a conversion


def peers(perdure, directory, *arguments):
    return subprocess.run([os.path.join(PEERS, "run.sh"), perdure, "--bytes=32M", f"--dir={directory}", *arguments], capture_output=True, text=True,
                          env={**os.environ, "PERDURE_PEER_PYTHON": PYTHON, "TORCH_EXTENSIONS_DIR": f"{directory}/extensions"}, check=False)


def check_row(row):
    assert row["row"] and row["unfair"] and row["pairs"] == 2, row
    assert all(row[number] > 0 for number in NUMBERS), row
    assert abs(row["ratio"] - row["perdure_seconds"] / row["peer_seconds"]) < 1e-9 and row["ratio_low"] <= row["ratio_high"], row
    on_disk = "dcp_to_torch_save" in row["row"] or (row["peer"].endswith("perdure's writer") and row["row"] in ON_DISK)
    sides = ("perdure", "peer", "disk") if on_disk else ("perdure", "peer")
    assert ("disk_seconds" in row) == on_disk, row
    assert all(0 < row[f"{side}_low"] <= row[f"{side}_seconds"] <= row[f"{side}_high"] for side in sides), row


def main(directory):
    if subprocess.run([PYTHON, "-c", "import torch"], capture_output=True, check=False).returncode:
        print("skipped: PERDURE_PEER_PYTHON names no interpreter that has torch")
        sys.exit(77)
    said = peers(PERDURE, directory, "--pairs=2", "--json", f"--only={','.join(FAST)},absent")
    assert said.returncode == 0, said.stderr
    result = json.loads(said.stdout)
    for row in result["rows"]:
        check_row(row)
    assert {"torch.save", "torch"} <= {row["peer"] for row in result["rows"]}, result["left_out"]
    assert all(entry["reason"] for entry in result["left_out"]) and "absent" in [entry["peer"] for entry in result["left_out"]], result
    assert result["versions"]["torch"] and result["date"] and result["processor"], result
    table = peers(PERDURE, directory, "--pairs=1", "--only=torch_save")
    assert table.returncode == 0 and table.stdout.count("| torch.save |") == 3, table
    failed = peers("/bin/false", directory, "--pairs=1", "--only=torch_save")
    assert failed.returncode == 1 and "torch_save: perdure bench ckpt" in failed.stderr, failed
    assert os.listdir(directory) == ["extensions"], "files are left behind"
    print(f"{len(result['rows'])} rows, left out: {[entry['peer'] for entry in result['left_out']]}")


with tempfile.TemporaryDirectory(prefix="perdure-peer-", dir=os.path.dirname(PERDURE)) as room:  # not in memory, as /tmp may be
    main(room)
