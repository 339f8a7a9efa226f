#include "tools/bench/bench.h"

#include "ckpt/base/checked.h"
#include "ckpt/base/clock.h"
#include "ckpt/base/random_bits.h"
#include "trainer/run/signals.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

void pd_pairs_add(struct pd_pairs *pairs, double candidate_s, double ceiling_s)
{
    PD_CHECK(pairs->count < PD_BENCH_PAIRS_MAX);
    pairs->candidate_s[pairs->count] = candidate_s;
    pairs->ceiling_s[pairs->count++] = ceiling_s;
}

pd_status pd_pairs_measure(struct pd_pairs *pairs, void *bench, pd_bench_side *candidate, pd_bench_side *ceiling,
                           struct pd_error *err)
{
    double candidate_s = 0, ceiling_s = 0;
    const bool is_odd = pairs->count % 2;
    if (is_odd) PD_TRY(ceiling(bench, &ceiling_s, err));
    PD_TRY(candidate(bench, &candidate_s, err));
    if (!is_odd) PD_TRY(ceiling(bench, &ceiling_s, err));
    pd_pairs_add(pairs, candidate_s, ceiling_s);
    return PD_OK;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, uint32_t count)
{
    qsort(values, count, sizeof *values, ascending);
    return count % 2 ? values[count / 2] : 0.5 * (values[count / 2 - 1] + values[count / 2]);
}

double pd_bench_quantile(double *values, uint32_t count, double share)
{
    qsort(values, count, sizeof *values, ascending);
    const uint32_t rank = (uint32_t)ceil(share * count);
    return values[rank ? rank - 1 : 0];
}

struct pd_pairs_summary pd_pairs_summarise(const struct pd_pairs *pairs)
{
    PD_CHECK(pairs->count > 0);
    struct pd_pairs sorted = *pairs;
    struct pd_pairs_summary summary;
    double ratios[PD_BENCH_PAIRS_MAX];
    for (uint32_t i = 0; i < pairs->count; i++)
        ratios[i] = pairs->candidate_s[i] / pairs->ceiling_s[i];
    summary.ratio = median(ratios, pairs->count);
    summary.ratio_low = ratios[0];
    summary.ratio_high = ratios[pairs->count - 1];
    summary.candidate_s = median(sorted.candidate_s, pairs->count);
    summary.ceiling_s = median(sorted.ceiling_s, pairs->count);
    return summary;
}

struct pd_pairs_summary pd_pairs_summarise_throughput(const struct pd_pairs *pairs)
{
    struct pd_pairs swapped = {.count = pairs->count};
    memcpy(swapped.candidate_s, pairs->ceiling_s, sizeof swapped.candidate_s);
    memcpy(swapped.ceiling_s, pairs->candidate_s, sizeof swapped.ceiling_s);
    struct pd_pairs_summary s = pd_pairs_summarise(&swapped);
    return (struct pd_pairs_summary){s.ceiling_s, s.candidate_s, s.ratio, s.ratio_low, s.ratio_high};
}

void pd_bench_report_ratio(struct pd_report *report, const char *key, const struct pd_pairs_summary *s)
{
    pd_report_range(report, key, s->ratio, s->ratio_low, s->ratio_high, PD_UNIT_NONE);
}

pd_status pd_bench_map(uint64_t bytes, void **ret_data, struct pd_error *err)
{
    void *data = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED)
        PD_FAIL(err, PD_NO_MEMORY, "bench: no memory for %s; take less with --bytes", pd_text_bytes(bytes).text);
    (void)madvise(data, bytes, MADV_HUGEPAGE); /* as an arena does; may fail */
    memset(data, 0, bytes);
    *ret_data = data;
    return PD_OK;
}

void pd_bench_fill(float *data, uint64_t count, uint64_t seed)
{
    for (uint64_t i = 0; i < count; i++) {
        seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        data[i] = (float)(seed >> 40) * 0x1p-25f;
    }
}

double pd_bench_processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#define DEPTH_MAX 16 /* most nested directories */

static pd_status bench_check_space(struct pd_vfs *vfs, const char *dir, uint64_t bytes, bool on_disk, struct pd_error *err)
{
    struct pd_space space;
    struct stat st;
    if (stat(dir, &st) || !S_ISDIR(st.st_mode))
        PD_FAIL(err, PD_NOT_FOUND, "--dir=%s: there is no such directory; name one on the disk to be measured", dir);
    PD_TRY(pd_vfs_space(vfs, dir, &space, err));
    if (space.in_memory && on_disk)
        PD_FAIL(err, PD_INVALID, "%s is in memory (%s) and says nothing about a disk: give a directory on one with --dir",
                dir, space.type_name);
    if (space.available_bytes < bytes)
        PD_FAIL(err, PD_NO_SPACE, "%s has %s free and the bench needs %s: give another with --dir, or less with --bytes",
                dir, pd_text_bytes(space.available_bytes).text, pd_text_bytes(bytes).text);
    return PD_OK;
}

pd_status pd_bench_dir_open(const char *above, uint64_t bytes, bool on_disk, struct pd_bench_dir *ret_dir,
                            struct pd_error *err)
{
    struct pd_bench_dir dir = {0};
    int length = snprintf(dir.path, sizeof dir.path, "%s/perdure-bench-XXXXXX", above);
    if (length < 0 || (size_t)length >= sizeof dir.path) PD_FAIL(err, PD_INVALID, "--dir: the path is too long");
    PD_TRY(pd_signals_install(err));
    PD_TRY(pd_vfs_new_auto(&dir.vfs, err));
    pd_status st = bench_check_space(dir.vfs, above, bytes, on_disk, err);
    if (!st && !mkdtemp(dir.path)) {
        int number = errno;
        st =
            pd_error_set(err, pd_status_from_errno(number), PD_WHERE, number, "%s: making a directory for the bench", above);
    }
    if (st) {
        pd_vfs_free(dir.vfs);
        return st;
    }
    *ret_dir = dir;
    return PD_OK;
}

void pd_bench_dir_path(const struct pd_bench_dir *dir, const char *name, char *ret_path)
{
    int length = snprintf(ret_path, 4096, "%s/%s", dir->path, name);
    PD_CHECK(length > 0 && length < 4096);
}

pd_status pd_bench_dir_remove(const struct pd_bench_dir *dir, const char *name, struct pd_error *err)
{
    char path[4096];
    pd_bench_dir_path(dir, name, path);
    struct pd_stat stat;
    pd_status st = pd_vfs_stat(dir->vfs, path, &stat, err);
    if (st) return st == PD_NOT_FOUND ? PD_OK : st;
    return stat.type == PD_ENTRY_DIRECTORY ? pd_vfs_remove_tree(dir->vfs, path, DEPTH_MAX, err)
                                           : pd_vfs_unlink(dir->vfs, path, err);
}

void pd_bench_dir_close(struct pd_bench_dir *dir)
{
    struct pd_error err;
    if (!dir->vfs) return;
    if (pd_vfs_remove_tree(dir->vfs, dir->path, DEPTH_MAX, &err))
        fprintf(stderr, "perdure: %s stays behind: %s\n", dir->path, err.message);
    pd_vfs_free(dir->vfs);
}

#define DISCARDS_QUIET_NS UINT64_C(200000000)
#define DISCARDS_WAIT_NS UINT64_C(20000000000)

/* Counts the disk's discards so far; false: unknown. */
static bool count_discards(dev_t disk, uint64_t *ret_count)
{
    char path[64];
    unsigned long long fields[12];
    snprintf(path, sizeof path, "/sys/dev/block/%u:%u/stat", major(disk), minor(disk));
    FILE *file = fopen(path, "re");
    if (!file) return false;
    int found = 0;
    while (found < 12 && fscanf(file, "%llu", &fields[found]) == 1)
        found++;
    fclose(file);
    if (found < 12) return false;
    *ret_count = fields[11];
    return true;
}

/* With mount option `discard` a file system discards removed blocks after its commit, in the background. Waits for that:
 * a measurement would wait behind it. */
static void wait_for_discards(const struct pd_bench_dir *dir)
{
    struct stat st;
    uint64_t before, now;
    if (stat(dir->path, &st) || !count_discards(st.st_dev, &before)) return;
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    for (uint64_t changed = start; pd_clock_monotonic_ns(NULL) - start < DISCARDS_WAIT_NS; before = now) {
        usleep(10000);
        if (!count_discards(st.st_dev, &now)) return;
        if (now != before) changed = pd_clock_monotonic_ns(NULL);
        if (pd_clock_monotonic_ns(NULL) - changed > DISCARDS_QUIET_NS) return;
    }
}

bool pd_bench_should_leave(void)
{
    return pd_signals_pending() != PD_SIGNAL_NONE;
}

pd_status pd_bench_dir_settle(const struct pd_bench_dir *dir, struct pd_error *err)
{
    if (pd_bench_should_leave()) PD_FAIL(err, PD_STOPPED, "bench: asked to leave, its files are removed");
    int fd = open(dir->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) PD_FAIL_ERRNO(err, errno, "%s: opening", dir->path);
    int failed = syncfs(fd) ? errno : 0;
    close(fd);
    if (failed) PD_FAIL_ERRNO(err, failed, "%s: waiting for the file system", dir->path);
    wait_for_discards(dir);
    return PD_OK;
}

/* ---- a place in a bucket ---- */

pd_status pd_bench_bucket_open(const char *url, struct pd_bench_bucket *ret_bucket, struct pd_error *err)
{
    struct pd_bench_bucket *b = ret_bucket;
    PD_TRY(pd_object_url_parse(url, &b->place, err));
    snprintf(b->prefix, sizeof b->prefix, "%.800s%sbench-%08" PRIx32, b->place.key, b->place.key[0] ? "/" : "",
             pd_random_bits(pd_clock_wall_ns(), 0));
    return pd_bucket_open(b->place.bucket, NULL, &b->bucket, err);
}

static pd_status bucket_remove_one(void *context, const char *key, uint64_t bytes, bool is_directory, struct pd_error *err)
{
    (void)bytes, (void)is_directory;
    return pd_bucket_delete(context, key, err);
}

void pd_bench_bucket_close(struct pd_bench_bucket *b)
{
    char below[PD_OBJECT_KEY_MAX + 2];
    struct pd_error err = {0};
    snprintf(below, sizeof below, "%s/", b->prefix);
    if (b->bucket && pd_bucket_list(b->bucket, below, true, bucket_remove_one, b->bucket, &err))
        fprintf(stderr, "cannot remove s3://%s/%s: %s\n", b->place.bucket, b->prefix, err.message);
    pd_bucket_close(b->bucket);
}

#define HUGE_BYTES (UINT64_C(2) << 20)

/* ---- tokens ---- */

pd_status pd_bench_temporary(char *ret_path, struct pd_error *err)
{
    const char *directory = getenv("TMPDIR");
    snprintf(ret_path, 4096, "%.4000s/perdure-bench-XXXXXX", directory && *directory ? directory : "/tmp");
    const int file = mkstemp(ret_path);
    if (file < 0) PD_FAIL_ERRNO(err, errno, "%s: making a temporary file", ret_path);
    close(file);
    return PD_OK;
}

pd_status pd_bench_write_tokens(const char *path, uint64_t count, uint64_t words, bool evenly, struct pd_error *err)
{
    FILE *f = fopen(path, "we");
    if (!f) PD_FAIL_ERRNO(err, errno, "%s: making it", path);
    const double log_words = log((double)words);
    uint64_t state = 1;
    bool failed = false;
    for (uint64_t i = 0; i < count; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const double share = (double)(state >> 11) * 0x1p-53;
        const uint16_t token = evenly ? (uint16_t)((state >> 33) % words) : (uint16_t)(exp(share * log_words) - 0.5);
        failed |= fwrite(&token, sizeof token, 1, f) != 1;
    }
    if (fclose(f) || failed) PD_FAIL_ERRNO(err, errno, "%s: writing it", path);
    return PD_OK;
}

/* ---- a run ---- */

/* Puts a path in single quotes for YAML; cuts off one that does not fit. */
static const char *quoted(const char *text, size_t bytes, char *ret_text)
{
    size_t at = 0;
    ret_text[at++] = '\'';
    for (; *text && at + 4 < bytes; text++) {
        if (*text == '\'') ret_text[at++] = '\'';
        ret_text[at++] = *text;
    }
    ret_text[at++] = '\'';
    ret_text[at] = '\0';
    return ret_text;
}

pd_status pd_bench_run_configure(struct pd_bench_run *run, const struct pd_bench_run_options *o, struct pd_error *err)
{
    char yaml[16384], path[8192];
    snprintf(yaml, sizeof yaml,
             "run: {dir: unused, steps: 1000000, device: %s}\nmodel: {%s}\n"
             "data: {train: [{path: %s, format: nanogpt}], validation_fraction: 0}\nvalidation: {every: 0}\n"
             "batch: {sequences: %llu, micro_batch: %llu, context: %llu}\n%s",
             o->is_gpu ? "gpu" : "cpu", o->model, quoted(o->tokens, sizeof path, path), (unsigned long long)o->sequences,
             (unsigned long long)o->micro_batch, (unsigned long long)o->context, o->sections);
    pd_config_deinit(&run->config);
    return pd_config_parse("bench", yaml, o->overrides, o->override_count, &run->config, err);
}

pd_status pd_bench_run_open(struct pd_bench_run *run, uint32_t threads, struct pd_error *err)
{
    PD_TRY(pd_whole_engine_open(&run->config, run->comm, &run->device, threads, &run->whole, err));
    return run->config.offload.optimizer == PD_PLACE_NVME ? PD_OK : pd_state_init(run->whole.engine->state, NULL, err);
}

void pd_bench_run_close(struct pd_bench_run *run)
{
    pd_whole_engine_close(&run->whole);
    pd_rank_device_close(&run->device);
    pd_config_deinit(&run->config);
    *run = (struct pd_bench_run){0};
}

pd_status pd_bench_run_step(struct pd_bench_run *run, uint64_t i, double *ret_seconds, double *ret_loss,
                            struct pd_error *err)
{
    struct pd_step_result result;
    const uint64_t start = pd_clock_monotonic_ns(NULL);
    PD_TRY(pd_engine_step(run->whole.engine, i * run->config.batch.sequences, i, &result, err));
    PD_TRY(pd_rank_device_sync(&run->device, err));
    *ret_seconds = pd_clock_seconds_since(start);
    if (ret_loss) *ret_loss = result.loss;
    return PD_OK;
}

uint64_t pd_bench_run_state_bytes(const struct pd_bench_run *run)
{
    return run->whole.model->parameter_count * PD_BENCH_STATE_BYTES_A_PARAMETER;
}

/* ---- a state ---- */

pd_status pd_bench_model_of_bytes(uint64_t state_bytes, struct pd_model **ret_model, struct pd_error *err)
{
    const uint64_t hidden = state_bytes < UINT64_C(512) << 20 ? 256 : 768, block = 12 * hidden * hidden + 13 * hidden;
    const uint64_t parameters = state_bytes / PD_BENCH_STATE_BYTES_A_PARAMETER, vocab = parameters / 3 / hidden;
    struct pd_model_config config;
    PD_TRY(pd_model_preset("gpt2-124m", &config, err));
    config.hidden = (uint32_t)hidden;
    config.heads = (uint32_t)hidden / 64;
    config.head_size = config.kv_heads = config.ffn = 0; /* derive them from the other members */
    if (vocab < config.vocab) config.vocab = (uint32_t)vocab;
    const uint64_t left = parameters - config.vocab * hidden - 2 * hidden, layers = left / block;
    config.layers = layers ? (uint32_t)layers : 1;
    config.context = left > config.layers * block + hidden ? (uint32_t)((left - config.layers * block) / hidden) : 1;
    return pd_model_new(&config, ret_model, err);
}

pd_status pd_bench_model_of_experts(uint64_t state_bytes, uint64_t tensors, struct pd_model **ret_model,
                                    struct pd_error *err)
{
    enum { EXPERTS = 128 };
    const uint64_t parameters = state_bytes / PD_BENCH_STATE_BYTES_A_PARAMETER, layers = tensors / 3 / EXPERTS;
    const uint64_t each = parameters / 8 * 7 / (3 * EXPERTS * layers); /* an eighth is the rest of the model */
    struct pd_model_config config;
    PD_TRY(pd_model_preset("qwen3-moe-1m", &config, err));
    config.layers = (uint32_t)layers;
    config.experts = EXPERTS;
    config.experts_per_token = 8;
    config.hidden = each < 65536 ? 128 : 512;
    config.heads = config.hidden / 64;
    config.kv_heads = config.heads / 2;
    config.head_size = 64;
    config.expert_ffn = (uint32_t)(each / config.hidden / 8 * 8);
    config.ffn = 4 * config.hidden;
    if (!config.expert_ffn)
        PD_FAIL(err, PD_USAGE, "--experts leaves each tensor less than 1024 elements; give --bytes=%" PRIu64 "M or more",
                3 * EXPERTS * layers * 1024 * PD_BENCH_STATE_BYTES_A_PARAMETER * 8 / 7 / 1048576 + 1);
    return pd_model_new(&config, ret_model, err);
}

pd_status pd_bench_memory_new(const struct pd_layout *layout, const struct pd_tensor_table *tensors, uint32_t rank,
                              struct pd_bench_memory *ret_memory, struct pd_error *err)
{
    struct pd_bench_memory *m = ret_memory;
    PD_TRY(pd_layout_shard_boxes(layout, tensors, rank, &m->boxes, &m->box_count, err));
    m->offsets = calloc(m->box_count + 1ull, sizeof *m->offsets);
    if (!m->offsets) PD_FAIL(err, PD_NO_MEMORY, "bench: no memory for %u boxes", m->box_count);
    for (uint32_t i = 0; i < m->box_count; i++) {
        m->offsets[i] = m->bytes;
        m->bytes += pd_round_up(pd_box_elements(&m->boxes[i].box) * sizeof(float), PD_VFS_ALIGN);
    }
    m->bytes = pd_round_up(m->bytes, HUGE_BYTES);
    PD_TRY(pd_bench_map(m->bytes, &m->data, err));
    return pd_bench_map(PD_BENCH_IO_BYTES, &m->io_buffers, err);
}

void pd_bench_memory_deinit(struct pd_bench_memory *m)
{
    free(m->boxes);
    free(m->offsets);
}

void *pd_bench_memory_box(void *memory, uint32_t tensor, enum pd_kind kind, uint32_t box)
{
    struct pd_bench_memory *m = memory;
    uint32_t low = 0, high = m->box_count;
    while (low < high) { /* binary search: boxes ascend by tensor and kind */
        const uint32_t middle = (low + high) / 2;
        const struct pd_shard_box *b = &m->boxes[middle];
        if (b->tensor < tensor || (b->tensor == tensor && b->kind < kind))
            low = middle + 1;
        else
            high = middle;
    }
    return (char *)m->data + m->offsets[low + box];
}
