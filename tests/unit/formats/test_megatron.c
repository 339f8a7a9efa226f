/* Files that Megatron-Core wrote (tests/golden/formats/make_megatron.py): what lies in buckets is what lies in whole tensors. */
#include "ckpt/base/digest.h"
#include "resharder/convert/compare.h"
#include "resharder/formats/format.h"
#include "tests/helpers/scale.h"

#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define GOLDEN PERDURE_SOURCE_DIR "/tests/golden/formats/megatron"

static struct pd_error err;

static void open_catalog(struct pd_vfs *vfs, const char *path, struct pd_catalog *c)
{
    const struct pd_format *format = NULL;
    cr_assert_eq(pd_format_of(vfs, path, &format, &err), PD_OK, "%s", err.message);
    cr_assert_str_eq(format->name, "megatron");
    pd_catalog_init(c, format->name);
    cr_assert_eq(format->read(vfs, path, c, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_catalog_finish(c, &err), PD_OK, "%s", err.message);
}

static void check_same(struct pd_vfs *vfs, const struct pd_catalog *left, const struct pd_catalog *right)
{
    struct pd_diff diff;
    const struct pd_compare_request request = {.left = {.catalog = left},
                                               .right = {.catalog = right},
                                               .buffers = aligned_alloc(PD_VFS_ALIGN, PD_COMPARE_BUFFER_BYTES)};
    cr_assert_eq(pd_compare(vfs, &request, &diff, &err), PD_OK, "%s", err.message);
    cr_assert_eq(diff.count, left->tensor_count);
    for (uint32_t i = 0; i < diff.count; i++)
        cr_assert_eq(diff.rows[i].difference, PD_SAME, "%s %d", diff.rows[i].name, diff.rows[i].kind);
    pd_diff_deinit(&diff);
    free(request.buffers);
}

static void check_words(const struct pd_catalog *c, uint32_t unmapped)
{
    const struct pd_catalog_text *config = pd_catalog_text(c, "config.json");
    cr_assert(c->counters.has_step && c->counters.step == 2);
    cr_assert(c->counters.has_samples && c->counters.samples == 16);
    cr_assert_eq(c->unmapped_count, unmapped);
    cr_assert_not_null(strstr(config->text, "\"LlamaForCausalLM\""));
    cr_assert_not_null(strstr(config->text, "\"num_key_value_heads\": 2"));
    cr_assert_not_null(strstr(config->text, "\"vocab_size\": 40"));
    cr_assert_not_null(strstr(config->text, "\"tie_word_embeddings\": true"));
}

Test(megatron, buckets_of_two_ranks_are_whole_tensors)
{
    struct pd_vfs *vfs = NULL;
    struct pd_catalog whole, buckets;
    cr_assert_eq(pd_vfs_new_threads(4, 1, &vfs, &err), PD_OK);
    open_catalog(vfs, GOLDEN "/fully_reshardable", &whole);
    open_catalog(vfs, GOLDEN "/dp_reshardable/iter_0000002", &buckets);
    cr_assert_eq(whole.tensor_count, 24u);
    cr_assert_eq(buckets.tensor_count, 24u);
    check_words(&whole, 1);
    check_words(&buckets, 2); /* groups of parameters too */
    cr_assert(whole.counters.has_updates && whole.counters.updates == 2);
    for (uint32_t t = 0; t < 24; t++)
        cr_assert_eq(whole.tensors[t].element, PD_ELEMENT_F32, "%s is the optimizer's", whole.tensors[t].name);
    check_same(vfs, &whole, &buckets);
    pd_catalog_deinit(&whole);
    pd_catalog_deinit(&buckets);
    pd_vfs_free(vfs);
}

/* Of all values as fp32, by name and kind. */
static uint64_t digest_of(struct pd_vfs *vfs, const struct pd_catalog *c)
{
    uint64_t *words = calloc(c->tensor_count, sizeof *words);
    struct pd_tensor_report *reports = calloc(c->tensor_count, sizeof *reports);
    const struct pd_compare_request request = {.left = {.catalog = c},
                                               .buffers = aligned_alloc(PD_VFS_ALIGN, PD_COMPARE_BUFFER_BYTES)};
    cr_assert_eq(pd_compare_report(vfs, &request, NULL, reports, NULL, &err), PD_OK, "%s", err.message);
    for (uint32_t i = 0; i < c->tensor_count; i++)
        words[i] = reports[c->by_name[i]].digest;
    const uint64_t digest = pd_digest_words(words, c->tensor_count, 0);
    free(words);
    free(reports);
    free(request.buffers);
    return digest;
}

/* Two tensor ranks, two stages with the embedding on both, two data-parallel ranks. The digest is that of the same ranks' own
 * fully_reshardable checkpoint. */
Test(megatron, buckets_of_tensor_ranks_and_stages_are_whole_tensors)
{
    struct pd_vfs *vfs = NULL;
    struct pd_catalog c;
    cr_assert_eq(pd_vfs_new_threads(4, 1, &vfs, &err), PD_OK);
    open_catalog(vfs, GOLDEN "/tp2_pp2", &c);
    cr_assert_eq(c.tensor_count, 24u);
    cr_assert_eq(digest_of(vfs, &c), UINT64_C(0xb856de5160f90ccc), "%" PRIx64, digest_of(vfs, &c));
    pd_catalog_deinit(&c);
    pd_vfs_free(vfs);
}

static void copy_golden(char *directory)
{
    char command[512];
    cr_assert_not_null(mkdtemp(directory));
    snprintf(command, sizeof command, "cp -r %s/dp_reshardable/. %s", GOLDEN, directory);
    cr_assert_eq(system(command), 0);
}

static void remove_copy(const char *directory)
{
    char command[512];
    snprintf(command, sizeof command, "rm -r %s", directory);
    cr_assert_eq(system(command), 0);
}

/* One byte of a parameter of the model, where the optimizer's of the bucket is another then. */
static void damage(struct pd_vfs *vfs, const char *directory)
{
    struct pd_catalog raw;
    struct pd_file *file = NULL;
    unsigned char byte = 0;
    pd_catalog_init(&raw, "dcp");
    cr_assert_eq(pd_format_find("dcp")->read(vfs, directory, &raw, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_catalog_finish(&raw, &err), PD_OK, "%s", err.message);
    const int64_t found = pd_catalog_find(&raw, "decoder.final_layernorm.weight", PD_PARAM);
    cr_assert_geq(found, 0);
    const struct pd_piece *piece = &raw.pieces[raw.tensors[found].piece_begin];
    cr_assert_eq(pd_file_open(vfs, raw.files[piece->file].path, PD_OPEN_READ | PD_OPEN_WRITE, &file, &err), PD_OK);
    cr_assert_eq(pd_file_read(file, piece->offset, &byte, 1, &err), PD_OK);
    byte ^= 1;
    cr_assert_eq(pd_file_write(file, piece->offset, &byte, 1, &err), PD_OK);
    cr_assert_eq(pd_file_close(file, &err), PD_OK);
    pd_catalog_deinit(&raw);
}

Test(megatron, buckets_in_no_order_that_is_known_are_refused)
{
    char directory[] = "/tmp/perdure-megatron-XXXXXX", iteration[128];
    struct pd_vfs *vfs = NULL;
    struct pd_catalog c;
    cr_assert_eq(pd_vfs_new_threads(4, 1, &vfs, &err), PD_OK);
    copy_golden(directory);
    snprintf(iteration, sizeof iteration, "%s/iter_0000002", directory);
    damage(vfs, iteration);
    pd_catalog_init(&c, "megatron");
    cr_assert_eq(pd_format_find("megatron")->read(vfs, directory, &c, &err), PD_UNSUPPORTED);
    cr_assert_not_null(strstr(err.message, "in no order that we know"), "%s", err.message);
    cr_assert_not_null(strstr(err.message, "--dist-ckpt-optim-fully-reshardable"), "%s", err.message);
    pd_catalog_deinit(&c);
    pd_vfs_free(vfs);
    remove_copy(directory);
}

static void write_whole(const char *path, const unsigned char *text, size_t bytes)
{
    FILE *out = fopen(path, "wb");
    cr_assert(out && fwrite(text, 1, bytes, out) == bytes && fclose(out) == 0);
}

/* An error that names the directory, or a catalog that holds together. */
static void read_damaged(struct pd_vfs *vfs, const char *directory)
{
    struct pd_catalog c;
    pd_catalog_init(&c, "megatron");
    err.message[0] = '\0';
    pd_status st = pd_format_find("megatron")->read(vfs, directory, &c, &err);
    if (!st) st = pd_catalog_finish(&c, &err);
    if (st) cr_assert_not_null(strstr(err.message, "perdure-megatron"), "%s", err.message);
    pd_catalog_deinit(&c);
}

/* Files of a checkpoint with a byte changed, or cut there. */
Test(megatron, damage_is_an_error_or_changes_nothing_that_is_checked)
{
    static const char *const files[] = {".metadata", "common.pt", "__0_0.distcp", "__1_1.distcp", "metadata.json"};
    static unsigned char text[1 << 17];
    char directory[] = "/tmp/perdure-megatron-XXXXXX", path[128];
    struct pd_vfs *vfs = NULL;
    uint64_t random = 11;
    cr_assert_eq(pd_vfs_new_threads(4, 1, &vfs, &err), PD_OK);
    copy_golden(directory);
    for (uint64_t round = 0; round < 300 * test_scale(); round++) {
        snprintf(path, sizeof path, "%s/iter_0000002/%s", directory, files[round % 5]);
        FILE *in = fopen(path, "rb");
        cr_assert_not_null(in);
        const size_t bytes = fread(text, 1, sizeof text, in);
        fclose(in);
        random = random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const size_t at = (size_t)(random >> 33) % bytes;
        const unsigned char was = text[at];
        text[at] = (unsigned char)(random >> 25);
        write_whole(path, text, round % 4 ? bytes : at);
        read_damaged(vfs, directory);
        text[at] = was;
        write_whole(path, text, bytes);
    }
    pd_vfs_free(vfs);
    remove_copy(directory);
}
