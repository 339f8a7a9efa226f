/* Files that Megatron-Core wrote (tests/golden/formats/make_megatron.py): what lies in buckets is what lies in whole tensors. */
#include "resharder/formats/compare.h"
#include "resharder/formats/format.h"

#include <criterion/criterion.h>
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
    char directory[] = "/tmp/perdure-megatron-XXXXXX", command[512], iteration[128];
    struct pd_vfs *vfs = NULL;
    struct pd_catalog c;
    cr_assert_eq(pd_vfs_new_threads(4, 1, &vfs, &err), PD_OK);
    cr_assert_not_null(mkdtemp(directory));
    snprintf(command, sizeof command, "cp -r %s/dp_reshardable/. %s", GOLDEN, directory);
    cr_assert_eq(system(command), 0);
    snprintf(iteration, sizeof iteration, "%s/iter_0000002", directory);
    damage(vfs, iteration);
    pd_catalog_init(&c, "megatron");
    cr_assert_eq(pd_format_find("megatron")->read(vfs, directory, &c, &err), PD_UNSUPPORTED);
    cr_assert_not_null(strstr(err.message, "in no order that we know"), "%s", err.message);
    cr_assert_not_null(strstr(err.message, "--dist-ckpt-optim-fully-reshardable"), "%s", err.message);
    pd_catalog_deinit(&c);
    pd_vfs_free(vfs);
    snprintf(command, sizeof command, "rm -r %s", directory);
    cr_assert_eq(system(command), 0);
}
