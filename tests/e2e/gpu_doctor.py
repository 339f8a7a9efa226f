#!/usr/bin/env python3
"""perdure doctor on simulated GPUs: the NUMA map of a made-up sysfs, and --gpu with a stand-in for NVIDIA's management library."""
import json
import os

import harness


def rows(workspace, arguments, environment):
    found = json.loads(workspace.command(["doctor", "--json", *arguments], environment).stdout)["findings"]
    return [row for row in found if row["what"].startswith("gpu")]


def expect(row, state, here, advice=""):
    if row["state"] != state or here not in row["here"] or (advice not in row["advice"] if advice else row.get("advice")):
        raise harness.Failure(f"{row}, expected {state}, {here}, {advice}")


def numa(workspace):
    root, cpu = workspace.directory("sys"), min(os.sched_getaffinity(0))
    for bus, node, cpus in ((0x10, 0, str(cpu)), (0x11, 1, "5000-5003")):
        os.makedirs(f"{root}/bus/pci/devices/0000:{bus:02x}:00.0")
        os.makedirs(f"{root}/devices/system/node/node{node}")
        with open(f"{root}/bus/pci/devices/0000:{bus:02x}:00.0/numa_node", "w", encoding="utf-8") as f:
            f.write(f"{node}\n")
        with open(f"{root}/devices/system/node/node{node}/cpulist", "w", encoding="utf-8") as f:
            f.write(f"{cpus}\n")
    found = rows(workspace, [], {"PERDURE_SIMT_GPUS": "2", "PERDURE_TEST_SYSFS": root})
    row = next(row for row in found if row["what"] == "gpu numa")
    expect(row, "limited", f"GPU 0: node 0, cores {cpu}; GPU 1: node 1, cores 5000-5003", "allow them")
    found = rows(workspace, [], {"PERDURE_SIMT_GPUS": "1", "PERDURE_TEST_SYSFS": root})
    expect(next(row for row in found if row["what"] == "gpu numa"), "ok", f"GPU 0: node 0, cores {cpu}")


def facts(workspace):
    stand_in = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(workspace.perdure))), "tests", "simt", "libsimt_nvml.so")
    found = rows(workspace, ["--gpu"], {"PERDURE_SIMT_GPUS": "2", "PERDURE_NVML": stand_in})
    by = {}
    for row in found:
        by.setdefault(row["what"], []).append(row)
    expect(by["gpu clocks"][0], "ok", "GPU 0: SM 1980 of 1980 MHz, memory 2619 of 2619 MHz, driver 580.65")
    expect(by["gpu clocks"][1], "limited", "GPU 1: SM 345 of 1980 MHz", "heat or power")
    expect(by["gpu memory"][0], "ok", "ECC on, 0 uncorrected")
    expect(by["gpu memory"][1], "limited", "ECC on, 3 uncorrected", "leave it out")
    expect(by["gpu links"][0], "ok", "PCIe 16 of 16 lanes, up to generation 5; NVLink 18 of 18 active")
    expect(by["gpu links"][1], "limited", "PCIe 8 of 16 lanes", "fewer lanes")
    for gpu in range(2):
        if "GB/s there" not in by["gpu copies"][gpu]["here"] or "of 64.0" not in by["gpu copies"][gpu]["here"]:
            raise harness.Failure(f"{by['gpu copies']}")
        if "TFLOP/s in bf16" not in by["gpu products"][gpu]["here"]:
            raise harness.Failure(f"{by['gpu products']}")


def peers(workspace):
    for more, state, here, advice in (({}, "ok", "6 of 6 pairs", ""),
                                      ({"PERDURE_SIMT_ALONE": "2"}, "limited", "3 of 6 pairs of GPUs read each other's memory", "GPU 0 and 2 do not")):
        found = rows(workspace, ["--gpu"], {"PERDURE_SIMT_GPUS": "4", "PERDURE_NVML": "off", **more})
        expect(next(row for row in found if row["what"] == "gpu peers"), state, here, advice)


def without(workspace):
    found = rows(workspace, ["--gpu"], {"PERDURE_SIMT_GPUS": "1", "PERDURE_NVML": "off"})
    expect(next(row for row in found if row["what"] == "gpu facts"), "unused", "does not open")
    found = rows(workspace, ["--gpu"], {"PERDURE_SIMT_GPUS": "0", "PERDURE_NVML": "off"})
    expect(next(row for row in found if row["what"] == "gpu facts"), "unused", "nothing is measured")


def body(workspace, arguments):
    numa(workspace)
    facts(workspace)
    peers(workspace)
    without(workspace)
    print("doctor: NUMA nodes, facts and rates of GPUs")


harness.main(body)
