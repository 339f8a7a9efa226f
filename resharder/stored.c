#include "resharder/stored.h"

#include <stdio.h>
#include <string.h>

pd_status pd_stored_open_shard(struct pd_vfs *vfs, const char *directory, const struct pd_commit *commit, uint32_t number,
                               struct pd_shard **ret_shard, struct pd_error *err)
{
    char path[4096 + 32];
    struct pd_shard *shard = NULL;
    snprintf(path, sizeof path, "%s/shard-%05u.h5", directory, number);
    PD_TRY(pd_shard_open(vfs, path, &commit->state.identity, &commit->shards[number], &shard, err));
    const struct pd_tensor_table *tensors = pd_shard_tensors(shard);
    for (uint32_t t = 0; t < tensors->count; t++) {
        const enum pd_dtype moments = tensors->tensors[t].moments;
        if (moments == commit->state.moments) continue;
        pd_shard_close(shard);
        PD_FAIL(err, PD_CORRUPT, "shard-%05u.h5 keeps moments in %s where the record says %s", number,
                pd_dtype_name(moments), pd_dtype_name(commit->state.moments));
    }
    *ret_shard = shard;
    return PD_OK;
}

bool pd_stored_has_boxes(const struct pd_shard *shard, const struct pd_tensor_table *model, const struct pd_shard_box *boxes,
                         uint32_t count)
{
    const struct pd_shard_box *have = pd_shard_boxes(shard);
    const struct pd_tensor_table *stored = pd_shard_tensors(shard);
    if (pd_shard_box_count(shard) != count) return false;
    for (uint32_t b = 0; b < count; b++) {
        const struct pd_tensor *is = &stored->tensors[have[b].tensor], *shall = &model->tensors[boxes[b].tensor];
        if (strcmp(is->name, shall->name) || memcmp(is->shape, shall->shape, sizeof is->shape) ||
            have[b].kind != boxes[b].kind || memcmp(&have[b].box, &boxes[b].box, sizeof have[b].box))
            return false;
    }
    return true;
}

pd_status pd_stored_verify_block(struct pd_shard *shard, uint32_t box, uint64_t block, void *data, struct pd_error *err)
{
    if (pd_shard_verify_block(shard, box, block, data, NULL) == PD_OK) return PD_OK;
    return pd_shard_read_blocks(shard, box, block, 1, data, err);
}
