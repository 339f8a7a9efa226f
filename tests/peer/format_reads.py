#!/usr/bin/env python3
"""A second implementation of ckpt/FORMAT.md, without HDF5: verifies every byte of a checkpoint and prints its state digest.

usage: format_reads.py CHECKPOINT
"""
import os
import struct
import sys

import xxhash
import zstandard

PAGE, BLOCK, MASK, SEED = 4096, 65536, (1 << 64) - 1, 0x5045524455524531
KINDS = ("param", "exp_avg", "exp_avg_sq")
SIZES = (4, 2, 2, 8, 1, 1, 1, 2, 4, 8, 1, 2, 4, 8, 1)  # of the data types
LISTED = 5  # this version and later ones


def xxh3(data, seed):
    return xxhash.xxh3_64_intdigest(data, seed=seed & MASK)


def words(*values):
    return xxh3(struct.pack(f"<{len(values)}Q", *values), SEED)


def u64(data, offset, count=1):
    values = struct.unpack_from(f"<{count}Q", data, offset)
    return values[0] if count == 1 else values


def trailer(data, magic, name, versions=(1,)):
    assert len(data) >= 2 * PAGE and len(data) % PAGE == 0, f"{name}: not whole pages"
    page = data[-PAGE:]
    assert xxh3(page[:4088], 0) == u64(page, 4088), f"{name}: trailer"
    assert page[:8] == magic, f"{name}: magic"
    assert u64(page, 8) in versions, f"{name}: version {u64(page, 8)}"
    assert u64(page, 16) == len(data), f"{name}: size"
    return page


def read_commit(path):
    with open(path, "rb") as file:
        data = file.read()
    page = trailer(data, b"PDCOMMIT", path, (1, LISTED))
    assert xxh3(data[:-PAGE], SEED) == u64(page, 4080), f"{path}: body"
    extents = [u64(page, 32 + 16 * i, 2) for i in range(7)]
    identity = u64(data, extents[0][0], 4)
    rows = [u64(data, extents[3][0] + 64 * r, 8) for r in range(extents[3][1] // 64)]
    return identity, rows, u64(page, 216)


def check_index(path, digest):
    if digest:
        with open(path, "rb") as file:
            assert xxh3(file.read(), 0) == digest, f"{path}: not the index of the record"


def mix(index, bits):
    x = (index + 1) * 0x9E3779B97F4A7C15 & MASK ^ (bits << 32 | bits)
    y = ((x >> 32 | x << 32 & MASK) + (x & 0xFFFFFFFF) * (x >> 32)) & MASK
    y ^= y >> 29
    return (y >> 32 | y << 32 & MASK) + (y & 0xFFFFFFFF) * 0x85EBCA6B & MASK


def box_digest(shape, start, count, data):
    total = 0
    for e, (bits,) in enumerate(struct.iter_unpack("<I", data)):
        index, scale, rest = 0, 1, e
        for d in (3, 2, 1, 0):
            index += (start[d] + rest % count[d]) * scale
            rest //= count[d]
            scale *= shape[d]
        total += mix(index, bits)
    return total & MASK


def read_chunks(data, table, grid, size, element, base, owned, name):
    """The bytes of a box that lies in chunks."""
    chunk_bytes, run_bytes, first, _ = grid
    box = bytearray()
    per_run = -(-run_bytes // chunk_bytes)
    for c in range(size // run_bytes * per_run):
        offset, stored, digest = u64(data, table + 32 * (first + c), 3)
        mask, = struct.unpack_from("<I", data, table + 32 * (first + c) + 24)
        raw = data[offset:offset + stored]
        pages = -(-stored // PAGE) * PAGE
        assert offset % PAGE == 0 and not any(data[offset + stored:offset + pages]), f"{name}: chunk {c}"
        owned.append((offset, pages))
        if mask == 0:
            assert xxh3(raw, ~base + c * 0x9E3779B97F4A7C15) == digest, f"{name}: digest of chunk {c}"
            shuffled = zstandard.ZstdDecompressor().decompress(raw)
            count = len(shuffled) // element
            raw = bytes(shuffled[j * count + i] for i in range(count) for j in range(element))
        else:
            assert mask == 3 and digest == 0, f"{name}: filter mask of chunk {c}"
        assert len(raw) == chunk_bytes, f"{name}: size of chunk {c}"
        real = min(chunk_bytes, run_bytes - c % per_run * chunk_bytes)
        assert not any(raw[real:]), f"{name}: what fills up chunk {c}"
        box += raw[:real]
    assert len(box) == size, f"{name}: size"
    return bytes(box)


def read_shard(path, identity, row, digests):
    with open(path, "rb") as file:
        data = file.read()
    assert len(data) == row[0], f"{path}: size"
    page = trailer(data, b"PDTRAIL1", path, (1, 2, 5, 6))
    table_offset, table_bytes, table_digest = u64(page, 24, 3)
    assert (table_offset, table_bytes, table_digest) == row[1:4], f"{path}: not the committed shard"
    table = data[table_offset:table_offset + table_bytes]
    seed = words(*u64(table, 32, 4))
    assert xxh3(table, seed) == table_digest, f"{path}: table"
    assert u64(table, 32, 4) == identity, f"{path}: identity"
    assert u64(table, 8) == u64(page, 8), f"{path}: versions"
    grids_at, chunks_at = u64(table, 144, 2)
    tensor_count, box_count, block_count = u64(table, 72, 3)
    tensors_at, boxes_at, checksums_at, rest_digest = u64(table, 112, 4)
    checksums = u64(table, checksums_at, block_count) if block_count > 1 else (u64(table, checksums_at),)
    rest = bytearray(data)
    owned = [(table_offset, table_bytes), (len(data) - PAGE, PAGE)]
    for b in range(box_count):
        at = boxes_at + 96 * b
        start, count = u64(table, at, 4), u64(table, at + 32, 4)
        offset, size, first = u64(table, at + 64, 3)
        tensor, kind = struct.unpack_from("<2I", table, at + 88)
        tensor_at = tensors_at + 224 * tensor
        name = table[tensor_at:tensor_at + 160].split(b"\0")[0]
        base = words(*identity, xxh3(name, SEED), kind, *start)
        grid = u64(table, grids_at + 32 * b, 4) if u64(table, 8) % 2 == 0 else (0,)
        ndim, dtype, _, kinds, flags, moments = struct.unpack_from("<2Ii3I", table, tensor_at + 200)
        is_listed = u64(table, 8) >= LISTED
        element = SIZES[moments if is_listed and kind else dtype]
        assert size == element * count[0] * count[1] * count[2] * count[3], f"{path}: {name}"
        assert not is_listed or (kinds >> kind & 1 and flags <= 1 and u64(table, tensor_at + 192) == 0), f"{path}: {name}"
        if grid[0]:
            box = read_chunks(data, table_offset + chunks_at, grid, size, element, base, owned, f"{path}: {name}")
        else:
            box = data[offset:offset + size]
        for k, place in enumerate(range(0, size, BLOCK)):
            block = box[place:place + BLOCK]
            assert xxh3(block, base + k * 0x9E3779B97F4A7C15) == checksums[first + k], f"{path}: {name} block {k}"
        if grid[0]:
            pass
        elif size >= PAGE:
            pages = -(-size // PAGE) * PAGE
            assert not any(data[offset + size:offset + pages]), f"{path}: padding of {name}"
            owned.append((offset, pages))
        else:
            rest[offset:offset + size] = bytes(size)
        if is_listed:
            continue  # the digest of a state is of fp32 and bf16
        key = (name, kind)
        value = box_digest(u64(table, tensor_at + 160, 4), start, count, box)
        digests[key] = (digests.get(key, 0) + value) & MASK
    for offset, size in sorted(owned, reverse=True):
        del rest[offset:offset + size]
    assert xxh3(bytes(rest), seed) == rest_digest, f"{path}: metadata"


def main(directory):
    identity, rows, index_digest = read_commit(os.path.join(directory, "commit.h5"))
    check_index(os.path.join(directory, "index.h5"), index_digest)
    digests = {}
    for number, row in enumerate(rows):
        read_shard(os.path.join(directory, f"shard-{number:05d}.h5"), identity, row, digests)
    if not digests:
        print(f"ok: {len(rows)} shards, step {identity[3]}, listed")
        return
    names = sorted({name for name, _ in digests})
    state = b"".join(name + b"\0" + struct.pack("<2Q", kind, digests.get((name, kind), 0))
                     for name in names for kind in range(len(KINDS)))
    print(f"ok: {len(rows)} shards, step {identity[3]}, state {xxh3(state, SEED):016x}")


if __name__ == "__main__":
    main(sys.argv[1])
