#!/usr/bin/env python3
"""Makes the seeds of targets whose inputs are no files as they are, out of tests/golden: make_seeds.py (torch for dcp, xxhash for shard)"""
import json
import os
import struct
import sys
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDEN = os.path.join(HERE, "../golden")
PAGE = 4096


def read(path):
    with open(os.path.join(GOLDEN, path), "rb") as f:
        return f.read()


def pickle_of(path):
    with zipfile.ZipFile(os.path.join(GOLDEN, path)) as archive:
        return archive.read(next(n for n in archive.namelist() if n.endswith("/data.pkl")))


def save(target, name, data):
    os.makedirs(os.path.join(HERE, "seeds", target), exist_ok=True)
    with open(os.path.join(HERE, "seeds", target, name), "wb") as f:
        f.write(data)


def record(part, data):
    return struct.pack("<BH", part, len(data)) + data


def deepspeed():
    for stage in (1, 2, 3):
        at = f"formats/deepspeed/zero{stage}/global_step2"
        model = "zero_pp_rank_0_mp_rank_00_model_states.pt" if stage == 3 else "mp_rank_00_model_states.pt"
        ranks = [record(1 + r, pickle_of(f"{at}/zero_pp_rank_{r}_mp_rank_00_optim_states.pt")) for r in range(3)]
        save("deepspeed", f"zero{stage}", record(0, b"global_step2") + b"".join(ranks) +
             record(5 if stage == 3 else 6, pickle_of(f"{at}/{model}")))


def objects():
    """The first byte says which parser reads the rest."""
    save("objects", "listing", b"\0<?xml version='1.0'?><ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>a&amp;b</NextContinuationToken>"
         b"<Contents><Key>run/&#x20AC; 1</Key><Size>12</Size></Contents><CommonPrefixes><Prefix>run/a/</Prefix></CommonPrefixes></ListBucketResult>")
    save("objects", "uploads", b"\1<ListMultipartUploadsResult><IsTruncated>true</IsTruncated><NextKeyMarker>k</NextKeyMarker>"
         b"<NextUploadIdMarker>7</NextUploadIdMarker><Upload><Key>run/x</Key><UploadId>7</UploadId></Upload></ListMultipartUploadsResult>")
    save("objects", "error", b"\2<Error><Code>PermanentRedirect</Code><Message>no</Message><Region>eu-west-3</Region></Error>")
    save("objects", "json", b'\3{"AccessKeyId": "a", "SecretAccessKey": "s", "Token": "t", "Expiration": "2026-11-30T02:00:00Z", "Code": "Success"}')
    save("objects", "xml", b"\4<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>a</AccessKeyId>"
         b"<SecretAccessKey>s</SecretAccessKey><SessionToken>t</SessionToken><Expiration>2026-11-30T02:00:00Z</Expiration></Credentials>"
         b"</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>")
    save("objects", "credentials", b"\5[default]\naws_access_key_id = a\naws_secret_access_key=s # no\n[profile b]\nrole_arn = r\n")
    save("objects", "config", b"\x83[profile default]\nregion = eu-west-1\nendpoint_url = http://h:1\ns3 =\n  endpoint_url = http://h:2\n")


def universal():
    at = "formats/deepspeed/universal3/global_step2"
    parts = [f"{at}/zero/a.weight/{kind}.pt" for kind in ("fp32", "exp_avg", "exp_avg_sq")]
    data = record(0, b"global_step2") + b"".join(record(1 + i, pickle_of(part)) for i, part in enumerate(parts))
    save("universal", "shapes", data + record(5, pickle_of(f"{at}/zero/a.bias/fp32.pt")) +
         record(7, pickle_of(f"{at}/zero_pp_rank_0_mp_rank_00_model_states.pt")))


def dcp():
    import tempfile
    import torch
    import torch.distributed.checkpoint as checkpoint
    with tempfile.TemporaryDirectory() as directory:
        state = {"model": {"w": torch.arange(6.0).reshape(2, 3)}, "optim": {"state": {"w": {"exp_avg": torch.ones(2, 3), "step": torch.tensor(3.0)}}}}
        checkpoint.save(state, checkpoint_id=directory, no_dist=True)
        save("dcp", "small", b"".join(record(i, read(f"{directory}/{name}")) for i, name in enumerate((".metadata", "__0_0.distcp"))))


def llmc():
    t, v, layers, heads, c, padded = 4, 5, 1, 1, 4, 8
    elements = padded * c + t * c + layers * (2 * c + 3 * c * c + 3 * c + c * c + c + 2 * c + 4 * c * c + 4 * c + 4 * c * c + c) + 2 * c
    model = struct.pack("<8i", 20240326, 3, t, v, layers, heads, c, padded)

    def state(ranks, rank, master):
        head = struct.pack("<11i", 20240527, 1, ranks, rank, master, 0, 0, 0, 0, 0, 2).ljust(1024, b"\0")
        return struct.pack("<I", 1024 + (2 + master) * elements // ranks * 4) + head

    whole = record(0, struct.pack("<I", 1024 + elements * 4) + model.ljust(1024, b"\0"))
    save("llmc", "model", whole)
    save("llmc", "state", whole + record(1, state(1, 0, 0)))
    save("llmc", "cut", whole + record(1, state(2, 0, 1)) + record(2, state(2, 1, 1)))


def megatron():
    for number, layout in enumerate(("dp_reshardable", "fully_reshardable")):
        at = f"formats/megatron/{layout}/iter_0000002"
        data = record(0, read(f"{at}/.metadata")) + record(1, pickle_of(f"{at}/common.pt")) + record(2, read(f"{at}/metadata.json"))
        for rank in (0, 1):
            data += record(3 + rank, struct.pack("<I", 90000) + read(f"{at}/__0_{rank}.distcp")[:2048])
        save("megatron", layout, data)
    save("megatron", "tracker", record(5, b"2\n") + record(0, b"\x80\x02}.") + record(1, b"\x80\x02}."))


def safetensors_directory():
    def file(size, header):
        return struct.pack("<IQ", 8 + len(header) + size, len(header)) + header
    a = b'{"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"__metadata__":{"format":"pt"}}'
    b = b'{"b":{"dtype":"BF16","shape":[4],"data_offsets":[0,8]}}'
    index = b'{"metadata":{"total_size":32},"weight_map":{"a":"model-00001-of-00002.safetensors","b":"model-00002-of-00002.safetensors"}}'
    save("safetensors_directory", "two", record(0, index) + record(1, file(24, a)) + record(2, file(8, b)))
    save("safetensors_directory", "one", record(3, file(24, a)) + record(4, b'{"model_type":"llama"}'))


def torch():
    plain, index = pickle_of("formats/plain.pt"), b'{"weight_map":{"t":"pytorch_model-00001-of-00002.bin","half":"pytorch_model-00002-of-00002.bin"}}'
    save("torch", "one", record(3, plain) + record(4, b'{"model_type":"llama"}'))
    save("torch", "two", record(0, index) + record(1, plain) + record(2, plain.replace(b"row", b"raw")))


def commit():
    for version in ("v1", "v2", "v5"):
        data = read(f"{version}/commit.h5")
        save("commit", version, data[-PAGE:-PAGE + 512] + data[:-PAGE])


def load():
    data = read("v1/commit.h5")
    record = data[-PAGE:-PAGE + 512] + data[:-PAGE]
    tensors = bytes([2, 200, 63, 0b00010110, 99, 0, 0, 80, 100, 0b00110001])  # (201, 63), (100), (81, 100)
    save("load", "record", bytes([0b1110]) + tensors + bytes([0, 0]) + record)
    # moments, dp tp pp sp, virtual tp sp, zero_shard, interleave, stages, small_bytes, first units
    for name, layout in (("parts", [0, 3, 1, 1, 1, 1, 1, 3, 1, 1, 1, 0]), ("chunks", [1, 1, 2, 1, 1, 8, 1, 1, 1, 1, 0, 0]),
                         ("stages", [0, 2, 1, 2, 1, 4, 1, 2, 1, 2, 200, 0, 1]), ("all", [0, 2, 2, 2, 1, 2, 2, 2, 2, 4, 0, 0, 1, 2, 3]),
                         ("wide", [1, 16, 2, 2, 2, 4, 4, 20, 1, 2, 1, 0, 2])):
        save("load", name, bytes([0b1111]) + tensors + bytes([0b00101001, 4]) + bytes(layout))


def store():
    def file(name, kind, data):
        return bytes([len(name)]) + name + struct.pack("<BH", kind, len(data)) + data

    data = read("v2/commit.h5")
    record = data[-PAGE:-PAGE + 512] + data[:-PAGE]
    shard = struct.pack("<I", len(read("v2/shard-00000.h5"))) # as the record has it
    step = b"step-000000000041-4/"
    save("store", "one", file(step + b"commit.h5", 2, record) + file(step + b"shard-00000.h5", 1, shard))
    save("store", "unfinished", file(b"step-000000000041-4.tmp/commit.h5", 2, record) + file(b"fence-9", 0, b"") + file(b"pool-9/recycle-00000-1", 0, b"x"))
    save("store", "torn", file(step + b"commit.h5", 0, b"torn") + file(step + b"shard-00000.h5", 1, shard) + file(b"lock", 0, b"") + file(b"owner", 0, b"me"))


def shard():
    """Two tensors: one of 64 bytes, one of two pages, in one piece or in two chunks, of which the second is stored as it is."""
    from xxhash import xxh3_64_intdigest as digest
    seed, stride, mask = 0x5045524455524531, 0x9E3779B97F4A7C15, (1 << 64) - 1
    run, lineage, step = (1, 2), 0, 5

    def tensor(name, shape, version):
        unit, tp_dim, kinds = (0, 0, 1) if version > 4 else (1, -1, 0)
        return name.ljust(160, b"\0") + struct.pack("<4Q Q IIiIII", *shape, *[1] * (4 - len(shape)), unit, len(shape), 0, tp_dim, kinds, 0, 0)

    def box(number, shape, offset, size, first):
        return struct.pack("<11Q II", 0, 0, 0, 0, *shape, *[1] * (4 - len(shape)), offset, size, first, number, 0)

    def checksum(name, data):
        name = digest(name, seed)
        own = digest(struct.pack("<10Q", *run, lineage, step, name, 0, 0, 0, 0, 0), seed)
        return struct.pack("<Q", digest(data, (own + 0 * stride) & mask))

    for version in (1, 2, 5, 6):
        is_chunked = version % 2 == 0
        head = [0, version, 0, 0, *run, lineage, step, 0, 2, 2, 2, 64 + 2 * PAGE, 65536, 256, 256 + 2 * 224, 256 + 2 * 224 + 2 * 96]
        behind, data = b"", bytearray(3 * PAGE)
        if is_chunked:
            grids = head[-1] + 16
            head += [0, grids, grids + 64, 2, 1, 3]
            rle = b"\x28\xb5\x2f\xfd\x60\x00\x0f" + struct.pack("<I", PAGE << 3 | 3)[:3] + b"\0"
            data[PAGE:PAGE + len(rle)] = rle
            behind = struct.pack("<4Q", 0, 0, 0, 0) + struct.pack("<4Q", PAGE, 2 * PAGE, 0, 0)
            behind += struct.pack("<3QII", PAGE, len(rle), 0, 0, 0) + struct.pack("<3QII", 2 * PAGE, PAGE, 0, 3, 0)
        table = struct.pack("<32Q", *head, *[0] * (32 - len(head))) + tensor(b"small", [4, 4], version) + tensor(b"large", [2, 1024], version)
        table += box(0, [4, 4], 128, 64, 0) + box(1, [2, 1024], 0 if is_chunked else PAGE, 2 * PAGE, 1)
        table += checksum(b"small", bytes(64)) + checksum(b"large", bytes(2 * PAGE)) + behind
        save("shard", f"v{version}", struct.pack("<H", len(table)) + table + bytes(data))


def tokenizer():
    tokens = ["<unk>", "<s>", "\u2581", "a", "b", "ab", "\u2581a"] + [f"<0x{b:02X}>" for b in range(4)]
    llama = {"ggml.model": "llama", "ggml.tokens": tokens, "ggml.scores": [-i for i in range(len(tokens))],
             "ggml.token_type": [2, 3, 1, 1, 1, 1, 1, 6, 6, 6, 6], "ggml.bos_token_id": 1, "ggml.unknown_token_id": 0, "ggml.add_bos_token": True}
    save("tokenizer", "gguf_llama", json.dumps(llama).encode())
    gpt2 = {"ggml.model": "gpt2", "ggml.pre": "llama-bpe", "ggml.tokens": ["a", "b", "ab", "\u0120", "<e>"], "ggml.merges": ["a b"],
            "ggml.token_type": [1, 1, 1, 1, 3], "ggml.eos_token_id": 4}
    save("tokenizer", "gguf_gpt2", json.dumps(gpt2).encode())


def token_file():
    u16, u32 = struct.pack("<8H", 1, 2, 3, 4, 5, 6, 7, 200), struct.pack("<4I", 1, 2, 3, 70000)
    index = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 3, 3) + struct.pack("<3i", 2, 2, 4) + struct.pack("<3q", 0, 4, 8) + struct.pack("<3q", 0, 2, 3)
    for name, head, files in (
            ("nanogpt", b"\x02\xff", record(0, u16)),
            ("llmc", b"\x00\x00", record(0, struct.pack("<3i", 20240520, 1, 8).ljust(1024, b"\0") + u16)),
            ("llmc32", b"\x03\x00", record(0, struct.pack("<3i", 20240801, 7, 4).ljust(1024, b"\0") + u32)),
            ("megatron", b"\x00\xff", record(0, u16) + record(1, index)),
            ("modes", b"\x04\x00", record(0, u16) + record(1, index + b"\0\1\0")),
            ("text", b"\x07\x00", record(2, b"\xef\xbb\xbfIn the beginning\r\n"))):
        save("token_file", name, head + files)


def documents():
    import gzip
    lines = b'{"text": "In the beginning"}\n\n{"id": 7, "text": "God created \\u00e9\\ud83d\\ude00 \\u0000"}\r\n{"text": ""}'
    text = b"\xef\xbb\xbfone\r\ntwo<|endoftext|>three\r"
    rle = b"\x28\xb5\x2f\xfd\x20\x28" + struct.pack("<I", 40 << 3 | 3)[:3] + b"a"
    for name, data in (("lines", lines), ("text", text), ("gzip", gzip.compress(lines, mtime=0) + gzip.compress(text, mtime=0)),
                       ("zstd", rle + rle), ("skip", b"\x50\x2a\x4d\x18\x02\0\0\0ab" + rle), ("wrong", b'{"text": 5}\n')):
        save("documents", name, b"\1" + data)


def config():
    def bare(text):
        return b"\n".join(line.split(b" #")[0].rstrip() for line in text.split(b"\n") if not line.startswith(b"#"))

    for name in ("gpt2-124m", "kjv", "gpt-1t"):
        with open(os.path.join(HERE, "../../tools/configs", name + ".yaml"), "rb") as f:
            save("config", name, b"\0" + bare(f.read()))
    save("config", "saved", b"\1" + bare(read("config/with_leaves.yaml")))
    save("config", "overrides", b"\0run: {dir: a}\0data.train=[{path: b.bin, weight: 2}, c]\0model.preset=gpt2-124m\0batch.context=1k\0optimizer.lr=3e-4")
    save("config", "tiers", b"\0run: {dir: a}\ndata: {train: [a, {path: b, format: llmc, weight: .5}], validation: c}\ncheckpoint:\n  tiers:\n"
         b"    - {dir: /m, every: 1, keep_last: 2, replicas: 1}\n    - {dir: /n, every: 50, bandwidth: 1G, compression: zstd:3}\nrestart: {ranks: [2, 1]}\n"
         b"layout: auto\nelastic: {min: 1, max: 4}\n")


def history():
    row = ('{{"step":{0},"fence":1,"time":{1},"loss":2.5,"validation_loss":3,"gradient_norm":1,"learning_rate":1e-3,"tokens":8192,"seconds":1.5,'
           '"tokens_per_second":9,"stall_seconds":0.1,"last_checkpoint":{0},"bubble":0.1,"memory_bytes":5,"eta_seconds":4,'
           '"stages":{{"forward":1,"backward":2,"sums":0,"update":0}},"tiers":[{{"newest":{0},"failures":1,"skipped":0,"cause":"x","replicated":2}}]}}\n')
    events = (b'{"event":"start","time":1.0,"restart":0,"ranks":2,"from_step":0,"transport":"mpi","host":"a","process":4}\n'
              b'{"event":"ranks","ranks":[{"rank":0,"process":4,"heartbeat":5},{"rank":1,"process":6}]}\n'
              b'{"event":"open","time":2.0,"fence":1,"step":0,"ranks":2,"hosts":1,"threads":1,"dp":2,"tp":1,"pp":1,"sp":1,"zero_stage":3,"parameters":9,'
              b'"planned_bytes":8,"checkpoint_bytes":7,"flops_per_token":6,"device":"cpu","tiers":[{"dir":"/t","in_memory":true,"newest":2}]}\n'
              b'{"event":"end","time":9.0,"exit_code":75,"restarts":true,"cause":"rank 1 died"}\n{"event":"start","time":9.5,"restart":1,"ranks":1,"from_step":2}\n'
              b'{"event":"open","time":9.6,"fence":2,"step":2}\n{"event":"leave","step":4}\n{"event":"end","time":12,"exit_code":0,"restarts":false}\n')
    rows = "".join(row.format(step, 2 + step) for step in range(1, 5)) + row.replace('"fence":1', '"fence":2').format(3, 10)
    save("history", "run", record(0, rows.encode()) + record(1, events))
    save("history", "rows", record(0, row.format(1, 5).encode() + b'{"step":2}\n'))
    save("history", "end", record(1, b'{"event":"end","exit_code":0}\n'))
    save("history", "times", record(0, b'{"step":0,"time":1e300}\n{"step":1,"fence":-1,"last_checkpoint":1e300,"seconds":-1e300}\n') +
         record(1, b'{"event":"start","time":1e300}\n{"event":"end","time":-1e300,"exit_code":1}\n'))


def message():
    def frame(kind, rank, data):
        return struct.pack("<IHHI", len(data), kind, 0, rank) + data

    save("message", "proof", frame(1, 0, bytes(range(32))) + frame(3, 0, bytes(range(32))))
    save("message", "begun", frame(4, 1, b"4711\n elsewhere 4026531836\n4242\n8\nhost-c\n1.0, build 0123456789abcdef\n12.3\n"))
    save("message", "ended", frame(11, 1, b"5\n4294967295\nthe disk is full\n") + frame(6, 0, b"") + frame(7, 0, bytes(8)))
    save("message", "gpu", frame(8, 1, b"GPU-1\n1\n") + frame(9, 0, b"2\nhost-c\nGPU-1\n0\n") + frame(10, 1, b""))
    save("message", "relay", frame(12, 1, b" elsewhere 4026531836") + frame(17, 1, struct.pack("<ii", 4711, 7)))
    save("message", "heartbeat", frame(13, 1, bytes(range(1, 129)) * 6))
    save("message", "long", frame(11, 1, b"x" * 4096) + struct.pack("<IHHI", 4097, 11, 0, 1))


def small():
    save("hosts", "list", b"# mine\na\nb:4 # four\nc slots=2 max_slots=4\nfe80::1\na:1\n")
    llama = (b'{"architectures":["LlamaForCausalLM"],"vocab_size":64,"hidden_size":32,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,'
             b'"head_dim":8,"intermediate_size":64,"max_position_embeddings":128,"rope_theta":1e4,"rms_norm_eps":1e-5,"tie_word_embeddings":true,'
             b'"bos_token_id":1,"eos_token_id":[2,3],"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,'
             b'"original_max_position_embeddings":64},"hidden_act":"silu"}')
    save("hugging_face", "llama", llama)
    save("hugging_face", "qwen2", llama.replace(b"LlamaForCausalLM", b"Qwen2ForCausalLM").replace(b"llama3", b"linear"))
    save("hugging_face", "qwen3", llama.replace(b"LlamaForCausalLM", b"Qwen3ForCausalLM"))
    save("hugging_face", "gpt2", b'{"architectures":["GPT2LMHeadModel"],"vocab_size":64,"n_embd":32,"n_layer":2,"n_head":4,"n_positions":128,'
         b'"n_inner":null,"layer_norm_epsilon":1e-5,"activation_function":"gelu_new","bos_token_id":1,"eos_token_id":2}')


if __name__ == "__main__":
    makers = [deepspeed, universal, dcp, llmc, megatron, safetensors_directory, torch, commit, store, load, shard, tokenizer, token_file, documents, config, history, message, objects, small]
    for make in makers:
        if len(sys.argv) == 1 or make.__name__ in sys.argv[1:]:
            make()
