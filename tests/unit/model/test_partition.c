/* The arithmetic of tensor and sequence parallelism: shares cover everything once, and runs of chunks and pieces are whole
 * subtrees. */
#include "tests/helpers/families.h"
#include "trainer/model/partition.h"

#include <criterion/criterion.h>

static struct pd_partition at(uint32_t tp, uint32_t tp_rank, uint32_t virtual_tp)
{
    struct pd_partition p = pd_partition_whole();
    p.tp = tp, p.tp_rank = tp_rank, p.virtual_tp = virtual_tp;
    return p;
}

static void cover(uint32_t tp, uint32_t virtual_tp, uint64_t units)
{
    uint64_t end = 0;
    for (uint32_t r = 0; r < tp; r++) {
        struct pd_partition p = at(tp, r, virtual_tp);
        struct pd_range mine = pd_partition_units(&p, units);
        cr_assert_eq(mine.begin, end);
        uint32_t first = pd_partition_first_chunk(&p);
        for (uint32_t c = first; c < first + pd_partition_chunk_count(&p); c++) {
            struct pd_range chunk = pd_partition_chunk(&p, units, c);
            cr_assert_eq(chunk.begin, end);
            cr_assert_leq(chunk.end - chunk.begin, (units + virtual_tp - 1) / virtual_tp);
            end = chunk.end;
        }
        cr_assert_eq(mine.end, end);
    }
    cr_assert_eq(end, units);
}

Test(partition, units_are_covered_once_by_runs_of_chunks)
{
    for (uint32_t virtual_tp = 1; virtual_tp <= 16; virtual_tp *= 2)
        for (uint32_t tp = 1; tp <= virtual_tp; tp *= 2)
            for (uint64_t units = 1; units < 40; units++)
                cover(tp, virtual_tp, units);
}

static void check_key_value_heads(const struct pd_model_config *c, uint32_t tp)
{
    uint64_t end = 0;
    bool shared = false;
    struct pd_range before = {0, 0};
    for (uint32_t r = 0; r < tp; r++) {
        struct pd_partition p = at(tp, r, 8);
        struct pd_range heads = pd_partition_units(&p, c->heads), needed = pd_partition_kv_needed(c, heads),
                        computed = pd_partition_kv_computed(c, heads);
        cr_assert_eq(computed.begin, end);
        end = computed.end;
        if (computed.begin < computed.end) cr_assert(needed.begin <= computed.begin && computed.end <= needed.end);
        for (uint64_t h = heads.begin; h < heads.end; h++)
            cr_assert(needed.begin <= h * c->kv_heads / c->heads && h * c->kv_heads / c->heads < needed.end);
        if (needed.begin == needed.end) continue;
        if (r && needed.begin < before.end) shared = true;
        before = needed;
    }
    cr_assert_eq(end, c->kv_heads);
    struct pd_partition p = at(tp, 0, 8);
    cr_assert_eq(pd_partition_kv_is_shared(c, &p), shared, "%u/%u heads, tp %u", c->heads, c->kv_heads, tp);
}

Test(partition, every_key_value_head_has_one_rank_that_computes_its_gradient)
{
    const uint32_t models[][2] = {{6, 3}, {12, 3}, {8, 8}, {7, 1}, {12, 2}, {5, 5}, {32, 8}};
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++)
        for (uint32_t tp = 1; tp <= 8; tp *= 2)
            check_key_value_heads(&(struct pd_model_config){.heads = models[m][0], .kv_heads = models[m][1]}, tp);
}

Test(partition, boxes_of_a_block_tile_its_tensors)
{
    struct pd_model_config config = {.family = PD_FAMILY_LLAMA,
                                     .vocab = 61,
                                     .context = 16,
                                     .layers = 1,
                                     .hidden = 24,
                                     .heads = 6,
                                     .kv_heads = 3,
                                     .head_size = 4,
                                     .ffn = 37,
                                     .qkv_bias = true};
    struct pd_model *model;
    struct pd_error err;
    cr_assert_eq(pd_model_new(&config, &model, &err), PD_OK, "%s", err.message);
    for (uint32_t tp = 1; tp <= 8; tp *= 2)
        for (uint32_t t = 0; t < model->tensors.count; t++) {
            const struct pd_tensor *tensor = &model->tensors.tensors[t];
            uint64_t elements = 0;
            for (uint32_t r = 0; r < tp; r++) {
                struct pd_partition p = at(tp, r, 8);
                struct pd_box boxes[8];
                uint32_t count = pd_partition_computed(model, &p, t, boxes, 8);
                for (uint32_t b = 0; b < count; b++)
                    elements += pd_box_elements(&boxes[b]);
            }
            uint32_t copies = tensor->tp_dim < 0 ? tp : 1;
            cr_assert_eq(elements, pd_tensor_elements(tensor) * copies, "%s, tp %u", tensor->name, tp);
        }
    pd_model_free(model);
}

static void check_pieces(uint32_t sp, uint32_t virtual_sp, uint32_t length)
{
    struct pd_partition p = pd_partition_whole();
    p.sp = sp, p.virtual_sp = virtual_sp;
    uint32_t total = pd_partition_piece_total(&p), tokens = 0, seen = 0;
    cr_assert_eq(total, virtual_sp == 1 ? 1 : 2 * virtual_sp);
    for (p.sp_rank = 0; p.sp_rank < sp; p.sp_rank++) {
        for (uint32_t i = 0; i < pd_partition_piece_count(&p); i++, seen++) {
            uint32_t piece = pd_partition_piece_at(&p, i);
            cr_assert_eq(piece, seen % 2 ? total - 1 - seen / 2 : seen / 2);
            cr_assert_eq(pd_partition_piece_owner(&p, piece), p.sp_rank);
            struct pd_range r = pd_partition_piece(&p, length, piece);
            cr_assert_lt(r.begin, r.end);
            cr_assert_eq(r.begin, piece ? pd_partition_piece(&p, length, piece - 1).end : 0);
        }
        tokens += pd_partition_tokens(&p, length);
    }
    cr_assert_eq(seen, total);
    cr_assert_eq(tokens, length);
}

Test(partition, pieces_are_dealt_in_folded_order)
{
    for (uint32_t virtual_sp = 1; virtual_sp <= 8; virtual_sp *= 2)
        for (uint32_t sp = 1; sp <= virtual_sp; sp *= 2)
            for (uint32_t length = 16; length < 40; length++)
                check_pieces(sp, virtual_sp, length);
}
