#!/usr/bin/env python3
"""Reads a checkpoint directory with h5py alone and compares whole tensors of index.h5 with the boxes of the shards.

usage: h5py_reads.py CHECKPOINT
"""
import glob
import os
import re
import sys

import h5py
import hdf5plugin  # compressed shards: filter 32015
import numpy

BOX = re.compile(r"^(.*)\[([0-9:,]+)\]$")


def boxes(shard):
    for kind in ("param", "exp_avg", "exp_avg_sq"):
        for name, data in shard.get(kind, {}).items():
            tensor, ranges = BOX.match(name).groups()
            yield kind, tensor, tuple(slice(*map(int, r.split(":"))) for r in ranges.split(",")), data


def main(directory):
    compared = compressed = 0
    with h5py.File(os.path.join(directory, "index.h5"), "r") as index:
        for path in sorted(glob.glob(os.path.join(directory, "shard-*.h5"))):
            with h5py.File(path, "r") as shard:
                assert shard.attrs["format"] == b"perdure shard", path
                assert shard.attrs["format_version"] in (1, 2, 5, 6), path
                listed = shard.attrs["format_version"] >= 5
                for kind, tensor, ranges, data in boxes(shard):
                    whole = index[kind][tensor]
                    is_float = whole.dtype.kind == "f"
                    assert listed or whole.dtype == numpy.float32 == data.dtype
                    assert numpy.isnan(whole.fillvalue) if is_float else not whole.fillvalue
                    assert numpy.array_equal(whole[ranges], data[...].astype(whole.dtype), equal_nan=is_float), f"{kind}/{tensor}"
                    compared += 1
                    compressed += data.chunks is not None
                    assert (data.chunks is None) == (shard.attrs["format_version"] % 2 == 1 or data.size * data.id.get_type().get_size() < 4096), data.name
                    assert data.chunks is None or data.id.get_create_plist().get_filter(1)[0] == hdf5plugin.Zstd.filter_id
    with h5py.File(os.path.join(directory, "commit.h5"), "r") as commit:
        state = commit["state"][0]
        assert commit.attrs["format"] == b"perdure commit"
        assert commit["shards"].shape[0] == len(glob.glob(os.path.join(directory, "shard-*.h5")))
        print(f"step {state['step']}, lineage {state['lineage']}, by {commit['created_by'][...].tobytes().decode()}")
    assert compared > 0
    print(f"ok: {compared} boxes, {compressed} of them compressed, equal through index.h5, h5py {h5py.__version__}")


if __name__ == "__main__":
    main(sys.argv[1])
