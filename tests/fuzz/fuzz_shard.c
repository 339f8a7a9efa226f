/* The table of a shard whose digest and trailer are right, behind pages of zeros that are not its metadata. */
#include "ckpt/base/digest.h"
#include "ckpt/shard/table.h"
#include "tests/fuzz/input_file.h"
#include "tests/fuzz/target.h"

#include <string.h>

enum { PAGE = PD_SHARD_PAGE_BYTES, DATA = 32 * PAGE };

static struct pd_shard_trailer seal(unsigned char *table, uint64_t bytes, uint64_t file_bytes)
{
    struct pd_shard_head head;
    memcpy(&head, table, sizeof head);
    head.magic = PD_SHARD_MAGIC;
    head.table_bytes = bytes;
    head.file_bytes = file_bytes;
    memcpy(table, &head, sizeof head);
    const struct pd_identity identity = {{head.run_id[0], head.run_id[1]}, head.lineage, head.step};
    struct pd_shard_trailer t = {.magic = PD_SHARD_TRAILER_MAGIC,
                                 .version = head.version,
                                 .file_bytes = file_bytes,
                                 .table_offset = DATA,
                                 .table_bytes = bytes,
                                 .table_digest = pd_digest64(table, bytes, pd_shard_table_seed(&identity))};
    t.self_digest = pd_digest64(&t, sizeof t - sizeof t.self_digest, 0);
    return t;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < sizeof(struct pd_shard_head)) return 0;
    const uint64_t pages = (bytes + PAGE - 1) / PAGE * PAGE, whole = DATA + pages + PAGE;
    unsigned char *file = calloc(1, whole);
    struct pd_shard *shard = NULL;
    struct pd_error err = {0};
    if (!file) abort();
    memcpy(file + DATA, data, bytes);
    const struct pd_shard_trailer trailer = seal(file + DATA, pages, whole);
    memcpy(file + whole - PAGE, &trailer, sizeof trailer);
    const struct input_file *input = input_file(file, whole);
    const pd_status st = pd_shard_open(input->vfs, input->path, NULL, NULL, &shard, &err);
    if (st && !err.message[0]) abort();
    if (!st) pd_shard_close(shard);
    free(file);
    return 0;
}
