#include "trainer/model/partition.h"

#include "ckpt/base/checked.h"

struct pd_partition pd_partition_whole(void)
{
    return (struct pd_partition){.tp = 1, .virtual_tp = 1, .sp = 1, .virtual_sp = 1};
}

/* ---- tensor parallel ---- */

struct pd_range pd_partition_chunk(const struct pd_partition *p, uint64_t units, uint32_t chunk)
{
    uint64_t size = (units + p->virtual_tp - 1) / p->virtual_tp;
    return (struct pd_range){pd_min_u64(chunk * size, units), pd_min_u64((chunk + 1ull) * size, units)};
}

uint32_t pd_partition_chunk_count(const struct pd_partition *p)
{
    return p->virtual_tp / p->tp;
}

uint32_t pd_partition_first_chunk(const struct pd_partition *p)
{
    return p->tp_rank * pd_partition_chunk_count(p);
}

struct pd_range pd_partition_units(const struct pd_partition *p, uint64_t units)
{
    uint32_t first = pd_partition_first_chunk(p), last = first + pd_partition_chunk_count(p) - 1;
    return (struct pd_range){pd_partition_chunk(p, units, first).begin, pd_partition_chunk(p, units, last).end};
}

struct pd_range pd_partition_kv_needed(const struct pd_model_config *config, struct pd_range query_heads)
{
    uint64_t group = config->heads / config->kv_heads;
    if (query_heads.begin == query_heads.end) return (struct pd_range){0, 0};
    return (struct pd_range){query_heads.begin / group, (query_heads.end - 1) / group + 1};
}

struct pd_range pd_partition_kv_computed(const struct pd_model_config *config, struct pd_range query_heads)
{
    uint64_t group = config->heads / config->kv_heads;
    return (struct pd_range){(query_heads.begin + group - 1) / group, (query_heads.end + group - 1) / group};
}

bool pd_partition_kv_is_shared(const struct pd_model_config *config, const struct pd_partition *p)
{
    struct pd_partition other = *p;
    const uint64_t group = config->heads / config->kv_heads;
    for (other.tp_rank = 1; other.tp_rank < p->tp; other.tp_rank++) {
        struct pd_range heads = pd_partition_units(&other, config->heads);
        if (heads.begin < heads.end && heads.begin % group) return true;
    }
    return false;
}

bool pd_partition_exchanges_heads(const struct pd_model_config *config, const struct pd_partition *p, uint32_t length)
{
    const uint64_t group = config->heads / config->kv_heads, chunk = pd_partition_chunk(p, config->heads, 0).end;
    const struct pd_range heads = pd_partition_units(p, config->heads);
    return p->sp > 1 && length % pd_partition_piece_total(p) == 0 && (heads.end - heads.begin) % (group * p->sp) == 0 &&
           (p->virtual_tp == 1 || chunk % group == 0);
}

bool pd_partition_kv_is_apart(const struct pd_model_config *config, const struct pd_partition *p)
{
    struct pd_partition other = *p;
    for (other.tp_rank = 0; other.tp_rank < p->tp; other.tp_rank++) {
        const struct pd_range computed = pd_partition_kv_computed(config, pd_partition_units(&other, config->heads)),
                              owned = pd_partition_units(&other, config->kv_heads);
        const bool is_empty = computed.begin >= computed.end && owned.begin == owned.end;
        if (!is_empty && (computed.begin != owned.begin || computed.end != owned.end)) return true;
    }
    return false;
}

static uint32_t columns_by_chunk(const struct pd_partition *p, const struct pd_tensor *tensor, struct pd_box *ret_boxes,
                                 uint32_t capacity)
{
    uint32_t count = 0, first = pd_partition_first_chunk(p);
    for (uint32_t chunk = first; chunk < first + pd_partition_chunk_count(p); chunk++) {
        struct pd_range units = pd_partition_chunk(p, (tensor->shape[1] + tensor->tp_unit - 1) / tensor->tp_unit, chunk);
        struct pd_box box = pd_box_whole(tensor);
        box.start[1] = pd_min_u64(units.begin * tensor->tp_unit, tensor->shape[1]);
        box.count[1] = pd_min_u64(units.end * tensor->tp_unit, tensor->shape[1]) - box.start[1];
        if (!box.count[1]) continue;
        if (count < capacity) ret_boxes[count] = box;
        count++;
    }
    return count;
}

static uint32_t boxes_of(const struct pd_model *model, const struct pd_partition *p, uint32_t index, bool computed,
                         struct pd_box *ret_boxes, uint32_t capacity)
{
    const struct pd_tensor *tensor = &model->tensors.tensors[index];
    struct pd_box box = pd_box_whole(tensor);
    if (tensor->tp_dim == 1) return columns_by_chunk(p, tensor, ret_boxes, capacity);
    if (tensor->tp_dim == 0) {
        struct pd_range units = pd_partition_units(p, (tensor->shape[0] + tensor->tp_unit - 1) / tensor->tp_unit);
        if (model->init[index].role == PD_ROLE_K || model->init[index].role == PD_ROLE_V) {
            struct pd_range heads = pd_partition_units(p, model->config.heads);
            units =
                computed ? pd_partition_kv_computed(&model->config, heads) : pd_partition_kv_needed(&model->config, heads);
        }
        box.start[0] = pd_min_u64(units.begin * tensor->tp_unit, tensor->shape[0]);
        box.count[0] = pd_min_u64(units.end * tensor->tp_unit, tensor->shape[0]) - box.start[0];
        if (!box.count[0]) return 0;
    }
    if (capacity) ret_boxes[0] = box;
    return 1;
}

uint32_t pd_partition_needed(const struct pd_model *model, const struct pd_partition *p, uint32_t tensor,
                             struct pd_box *ret_boxes, uint32_t capacity)
{
    return boxes_of(model, p, tensor, false, ret_boxes, capacity);
}

uint32_t pd_partition_computed(const struct pd_model *model, const struct pd_partition *p, uint32_t tensor,
                               struct pd_box *ret_boxes, uint32_t capacity)
{
    return boxes_of(model, p, tensor, true, ret_boxes, capacity);
}

/* ---- sequence parallel ---- */

uint32_t pd_partition_piece_total(const struct pd_partition *p)
{
    return p->virtual_sp == 1 ? 1 : 2 * p->virtual_sp;
}

uint32_t pd_partition_piece_count(const struct pd_partition *p)
{
    return pd_partition_piece_total(p) / p->sp;
}

uint32_t pd_partition_piece_at(const struct pd_partition *p, uint32_t place)
{
    uint32_t folded = p->sp_rank * pd_partition_piece_count(p) + place;
    return folded % 2 ? pd_partition_piece_total(p) - 1 - folded / 2 : folded / 2;
}

uint32_t pd_partition_piece_owner(const struct pd_partition *p, uint32_t piece)
{
    uint32_t total = pd_partition_piece_total(p);
    uint32_t folded = 2 * piece < total ? 2 * piece : 2 * (total - 1 - piece) + 1;
    return folded / pd_partition_piece_count(p);
}

struct pd_range pd_partition_piece(const struct pd_partition *p, uint32_t length, uint32_t piece)
{
    uint64_t total = pd_partition_piece_total(p);
    return (struct pd_range){piece * (uint64_t)length / total, (piece + 1ull) * length / total};
}

uint32_t pd_partition_tokens(const struct pd_partition *p, uint32_t length)
{
    uint64_t tokens = 0;
    for (uint32_t place = 0; place < pd_partition_piece_count(p); place++) {
        struct pd_range piece = pd_partition_piece(p, length, pd_partition_piece_at(p, place));
        tokens += piece.end - piece.begin;
    }
    return (uint32_t)tokens;
}
