/* perdure bench tokenize: encoding a text with a tokenizer on some cores, against the `tokenizers` package on as many. The
 * package runs in a Python of its own that lives through all pairs and waits while it is not its turn. Both must count the same
 * tokens. Without the package our side is measured alone, and the report says why. */
#include "ckpt/base/clock.h"
#include "tools/bench/bench.h"
#include "trainer/data/data_file.h"
#include "trainer/data/pack.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DOCUMENT_BYTES 65536u

struct tokenize_bench {
    const char *tokenizer_path, *text_path, *python;
    uint64_t pairs;
    uint32_t threads;
    bool json;
    struct pd_tokenizer *tokenizer;
    struct pd_thread_pool *pool;
    struct pd_encoder *encoder;
    char *text;
    uint64_t bytes;
    uint64_t tokens, sum;           /* of the last run of ours */
    uint64_t peer_tokens, peer_sum; /* of the package's */
    pid_t peer;                     /* 0: none */
    FILE *to_peer, *from_peer;
};

static const char peer_program[] = "import sys, time\n"
                                   "try:\n"
                                   "    from tokenizers import Tokenizer\n"
                                   "    t = Tokenizer.from_file(sys.argv[1])\n"
                                   "except Exception as e:\n"
                                   "    print('no', str(e).replace(chr(10), ' ')[:300], flush=True)\n"
                                   "    sys.exit(1)\n"
                                   "t.no_truncation(); t.no_padding()\n"
                                   "raw = open(sys.argv[2], 'rb').read()\n"
                                   "docs, at = [], 0\n"
                                   "while at < len(raw):\n"
                                   "    end = raw.find(b'\\n', at + 65535)\n"
                                   "    end = len(raw) if end < 0 else end + 1\n"
                                   "    docs.append(raw[at:end].decode('utf-8', 'replace'))\n"
                                   "    at = end\n"
                                   "encode = getattr(t, 'encode_batch_fast', t.encode_batch)\n"
                                   "print('ready', flush=True)\n"
                                   "for line in sys.stdin:\n"
                                   "    start = time.perf_counter()\n"
                                   "    made = encode(docs)\n"
                                   "    seconds = time.perf_counter() - start\n"
                                   "    ids = [e.ids for e in made]\n"
                                   "    print(seconds, sum(map(len, ids)), sum(map(sum, ids)), flush=True)\n"
                                   "    del made, ids\n";

/* ---- the package ---- */

static void run_peer(const struct tokenize_bench *b, const int in[2], const int out[2])
{
    char threads[16], path[4200];
    snprintf(threads, sizeof threads, "%u", b->threads);
    snprintf(path, sizeof path, "%s/" PD_TOKENIZER_FILE, b->tokenizer_path);
    dup2(in[0], 0);
    dup2(out[1], 1);
    close(in[1]);
    close(out[0]);
    setenv("RAYON_NUM_THREADS", threads, 1);
    setenv("TOKENIZERS_PARALLELISM", "true", 1);
    execlp(b->python, b->python, "-c", peer_program, access(path, F_OK) == 0 ? path : b->tokenizer_path, b->text_path,
           (char *)NULL);
    printf("no %s: %s\n", b->python, strerror(errno));
    fflush(stdout);
    _exit(1);
}

static pd_status run_theirs(void *bench, double *ret_seconds, struct pd_error *err)
{
    struct tokenize_bench *b = bench;
    fputs("go\n", b->to_peer);
    fflush(b->to_peer);
    if (fscanf(b->from_peer, "%lf %" SCNu64 " %" SCNu64, ret_seconds, &b->peer_tokens, &b->peer_sum) != 3)
        PD_FAIL(err, PD_IO, "%s ended in the middle of the bench", b->python);
    return PD_OK;
}

/* ---- ours ---- */

static pd_status count_tokens(void *context, const int32_t *ids, size_t count, struct pd_error *err)
{
    struct tokenize_bench *b = context;
    (void)err;
    b->tokens += count;
    for (size_t i = 0; i < count; i++)
        b->sum += (uint64_t)ids[i];
    return PD_OK;
}

static pd_status run_ours(void *bench, double *ret_seconds, struct pd_error *err)
{
    struct tokenize_bench *b = bench;
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    b->tokens = b->sum = 0;
    for (uint64_t at = 0, end; at < b->bytes; at = end) {
        const uint64_t least = at + DOCUMENT_BYTES - 1;
        const char *line = least < b->bytes ? memchr(b->text + least, '\n', b->bytes - least) : NULL;
        end = line ? (uint64_t)(line - b->text) + 1 : b->bytes;
        PD_TRY(pd_encoder_add(b->encoder, b->text + at, end - at, true, err));
    }
    PD_TRY(pd_encoder_flush(b->encoder, err));
    *ret_seconds = pd_clock_seconds_since(NULL, start);
    return PD_OK;
}

/* ---- the bench ---- */

static pd_status measure(struct tokenize_bench *b, bool has_peer, struct pd_pairs *pairs, struct pd_error *err)
{
    double seconds;
    PD_TRY(run_ours(b, &seconds, err)); /* memory is there and the cache knows the words, on both sides */
    if (has_peer) PD_TRY(run_theirs(b, &seconds, err));
    while (pairs->count < b->pairs) {
        if (has_peer) {
            PD_TRY(pd_pairs_measure(pairs, b, run_ours, run_theirs, err));
            continue;
        }
        PD_TRY(run_ours(b, &seconds, err));
        pd_pairs_add(pairs, seconds, seconds);
    }
    if (has_peer && (b->tokens != b->peer_tokens || b->sum != b->peer_sum))
        PD_FAIL(err, PD_BUG,
                "%s: %" PRIu64 " tokens with sum %" PRIu64 ", and the package has %" PRIu64 " with sum %" PRIu64,
                b->tokenizer_path, b->tokens, b->sum, b->peer_tokens, b->peer_sum);
    return PD_OK;
}

static pd_status measure_and_report(struct tokenize_bench *b, struct pd_error *err)
{
    struct pd_report r;
    struct pd_pairs pairs = {0};
    char reason[400];
    size_t room = sizeof reason;
    int in[2], out[2];
    char line[400] = "";
    if (pipe(in) || pipe(out)) PD_FAIL_ERRNO(err, errno, "making a pipe to %s", b->python);
    fflush(stdout);
    b->peer = fork();
    if (b->peer < 0) PD_FAIL_ERRNO(err, errno, "starting %s", b->python);
    if (b->peer == 0) run_peer(b, in, out);
    close(in[0]);
    close(out[1]);
    b->to_peer = fdopen(in[1], "w");
    b->from_peer = fdopen(out[0], "r");
    if (!b->to_peer || !b->from_peer) PD_FAIL(err, PD_NO_MEMORY, "no memory for a pipe");
    if (!fgets(line, sizeof line, b->from_peer)) snprintf(line, sizeof line, "no %s ended without a word", b->python);
    line[strcspn(line, "\n")] = '\0';
    snprintf(reason, room, "%s", strcmp(line, "ready") == 0 ? "" : strncmp(line, "no ", 3) == 0 ? line + 3 : line);
    PD_TRY(measure(b, !reason[0], &pairs, err));
    const struct pd_pairs_summary summary = pd_pairs_summarise_throughput(&pairs);
    pd_report_begin(&r, b->json);
    if (reason[0])
        pd_report_text(&r, "tokenize_ratio_missing", reason);
    else
        pd_bench_report_ratio(&r, "tokenize_ratio", &summary);
    pd_report_double(&r, "bytes_per_second", (double)b->bytes / summary.candidate_s, PD_UNIT_NONE);
    if (!reason[0]) pd_report_double(&r, "peer_bytes_per_second", (double)b->bytes / summary.ceiling_s, PD_UNIT_NONE);
    PD_REPORT_U64S(&r, {"bytes", b->bytes}, {"tokens", b->tokens}, {"threads", b->threads}, {"pairs", b->pairs});
    return pd_report_end(&r, err);
}

static pd_status run(struct tokenize_bench *b, struct pd_error *err)
{
    const struct pd_encoder_sink sink = {count_tokens, b};
    int fd;
    PD_TRY(pd_data_file_open(b->text_path, false, &fd, &b->bytes, err));
    b->text = malloc(b->bytes);
    pd_status st = PD_OK;
    if (!b->text) st = pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "no memory for %" PRIu64 " bytes of text", b->bytes);
    if (!st) st = pd_data_file_read(fd, b->text_path, 0, b->text, b->bytes, err);
    close(fd);
    PD_TRY(st);
    PD_TRY(pd_tokenizer_open(b->tokenizer_path, &b->tokenizer, err));
    PD_TRY(pd_thread_pool_new(b->threads, &b->pool, err));
    PD_TRY(pd_encoder_new(b->tokenizer, b->pool, &sink, &b->encoder, err));
    return measure_and_report(b, err);
}

pd_status pd_bench_tokenize(int argc, char **argv, struct pd_error *err)
{
    const char *given = getenv("PERDURE_PEER_PYTHON");
    struct tokenize_bench b = {.pairs = 5, .threads = 2, .python = given ? given : "python3"};
    uint32_t words;
    struct pd_option options[] = {
        PD_OPTION("tokenizer", "PATH", "a tokenizer.json, or a directory that holds one", PD_OPTION_TEXT, &b.tokenizer_path),
        PD_OPTION("pairs", "N", "alternated pairs of measurements, 1 to 99 (5)", PD_OPTION_U64, &b.pairs, 1,
                  PD_BENCH_PAIRS_MAX),
        PD_OPTION("threads", "N", "of either side (2)", PD_OPTION_U32, &b.threads, 1, 1024),
        {0}};
    const struct pd_usage usage = {.arguments = "TEXT",
                                   .doc = "Encodes a text file, in documents of about 64 KiB, against the tokenizers "
                                          "package in a Python of its own, on as many threads, alternated. tokenize_ratio: "
                                          "our bytes a second over the package's; absent, with the reason, where there is "
                                          "no package.",
                                   .options = options,
                                   .json = &b.json,
                                   PD_WORDS(&b.text_path, 1, &words)};
    PD_COMMAND_PARSE(&usage, argc, argv, err);
    if (!b.text_path || !b.tokenizer_path)
        PD_FAIL(err, PD_USAGE, "name a text and its tokenizer: perdure bench tokenize --tokenizer=tokenizer.json text.txt");
    pd_status st = run(&b, err);
    if (b.to_peer) fclose(b.to_peer);
    if (b.from_peer) fclose(b.from_peer);
    if (b.peer > 0) waitpid(b.peer, NULL, 0);
    pd_encoder_free(b.encoder);
    pd_thread_pool_free(b.pool);
    pd_tokenizer_free(b.tokenizer);
    free(b.text);
    return st;
}
