"""The tokenizers package: a byte-level BPE over documents in JSON lines, to a file of 16-bit tokens as nanoGPT reads it."""
import glob
import json
import os
import sysconfig

import peer

UNFAIR = {"pack JSON lines": "the same documents in, the same bytes out, fsync at the end of both; perdure starts anew and reads its tokenizer each "
                             "time, theirs is loaded and its packages are imported before"}
DOCUMENT_BYTES, WORDS = 1 << 16, 8000


def documents(bytes_max):
    """Python's own library, which is there wherever this runs."""
    found = []
    for path in sorted(glob.glob(os.path.join(sysconfig.get_path("stdlib"), "**", "*.py"), recursive=True)):
        with open(path, encoding="utf-8", errors="replace") as f:
            text = f.read()
        found += [text[at:at + DOCUMENT_BYTES] for at in range(0, len(text), DOCUMENT_BYTES)]
        bytes_max -= len(text)
        if bytes_max < 0:
            break
    return found


def prepare(room):
    os.environ.update(RAYON_NUM_THREADS=str(room.threads), TOKENIZERS_PARALLELISM="true")
    import numpy
    import tokenizers
    lines, model, ours_at, theirs_at = room.at("text.jsonl"), room.at("tokenizer.json"), room.at("ours.bin"), room.at("theirs.bin")
    found = documents(room.bytes // 16)
    with open(lines, "w", encoding="utf-8") as f:
        f.writelines(json.dumps({"text": text}) + "\n" for text in found)
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(found[:64], vocab_size=WORDS, show_progress=False)
    tokenizer.save(model)
    encode = tokenizers.Tokenizer.from_file(model).encode_batch_fast

    def pack():
        with open(lines, encoding="utf-8") as f:
            made = encode([json.loads(line)["text"] for line in f])
        numpy.concatenate([numpy.array(one.ids, numpy.uint16) for one in made]).tofile(theirs_at)
        peer.sync(theirs_at)

    def theirs():
        return dict.fromkeys(UNFAIR, peer.timed(pack))

    def ours():
        seconds = room.seconds_of_run("data", "pack", lines, f"--output={ours_at}", f"--tokenizer={model}", "--overwrite")
        return dict.fromkeys(UNFAIR, seconds)

    pack()
    ours()
    with open(ours_at, "rb") as mine, open(theirs_at, "rb") as other:
        if mine.read() != other.read():
            raise peer.PerdureFailed("data pack made other tokens than the tokenizers package")
    return theirs, ours


peer.main("tokenizers", prepare, UNFAIR)
