/* Saved activations in files: written after a block's forward, read before its backward, in flight while others compute.
 *
 * A place (slot and block) has two spans: its input, and its saved activations. Forward computes inputs in `turns`, two per
 * kept micro-batch, used by its blocks alternately, and saved activations in one of the regions. Backward reads both into a
 * region. So it takes the memory of a few blocks, whatever the number of blocks and micro-batches. A budget keeps places of
 * the last blocks, whose backward comes first, in memory of their own. */
#include "ckpt/base/checked.h"
#include "trainer/model/transformer_internal.h"

#include <stdlib.h>

#define REGIONS PD_ACTIVATION_REGIONS

static uint32_t input_span(uint32_t place)
{
    return 2 * place;
}

static uint32_t kept_span(uint32_t place)
{
    return 2 * place + 1;
}

/* Places of the head follow the blocks'; it has only an input, in the same turns. */
static uint32_t block_places(const struct pd_transformer *t)
{
    const struct pd_held *head = &t->held[t->model->config.layers];
    return head->chunk == PD_NOT_HELD ? t->place_count : head->base;
}

static bool stays(const struct pd_transformer *t, uint32_t place)
{
    return place >= t->away.away_places && place < block_places(t);
}

/* Bytes a block saves, without its input. */
static uint64_t kept_bytes(const struct pd_transformer *t, uint32_t block)
{
    struct pd_block_activations counted;
    return pd_activations_carve(t, block, &counted, NULL);
}

static uint64_t place_bytes(const struct pd_transformer *t, uint32_t block)
{
    return pd_round_up(pd_transformer_stream_bytes(t), PD_VFS_ALIGN) + pd_round_up(kept_bytes(t, block), PD_VFS_ALIGN);
}

static uint32_t block_of_place(const struct pd_transformer *t, uint32_t place)
{
    for (uint32_t block = 0; block < t->model->config.layers; block++) {
        const struct pd_held *held = &t->held[block];
        if (held->chunk != PD_NOT_HELD && held->base <= place && place < held->base + held->depth) return block;
    }
    return PD_NOT_HELD;
}

/* Recomputed blocks come first, so the last place to leave is one of the largest. */
static void find_away_places(struct pd_transformer *t)
{
    uint64_t stay = 0;
    if (!t->options.activations_in_files || !t->options.backward || !t->has_blocks) return;
    t->away.away_places = block_places(t);
    while (t->away.away_places) {
        const uint32_t block = block_of_place(t, t->away.away_places - 1);
        stay += place_bytes(t, block);
        t->away.region_bytes = place_bytes(t, block);
        t->away.regions_are_whole = t->held[block].recompute == PD_RECOMPUTE_NONE;
        if (stay > t->options.activations_budget) break;
        t->away.away_places--;
    }
    t->away.regions_are_whole &= t->away.away_places > 0;
}

uint32_t pd_transformer_span_count(const struct pd_transformer *t)
{
    return 2 * t->place_count;
}

void pd_transformer_spans(const struct pd_transformer *t, uint64_t *ret_bytes)
{
    for (uint32_t block = 0; block <= t->model->config.layers; block++) {
        const struct pd_held *held = &t->held[block];
        const bool is_block = block < t->model->config.layers;
        for (uint32_t i = 0; held->chunk != PD_NOT_HELD && i < held->depth; i++) {
            const bool is_away = is_block && held->base + i < t->away.away_places;
            ret_bytes[input_span(held->base + i)] = is_away ? pd_transformer_stream_bytes(t) : 0;
            ret_bytes[kept_span(held->base + i)] = is_away ? kept_bytes(t, block) : 0;
        }
    }
}

uint64_t pd_transformer_away_bytes(const struct pd_transformer *t, uint32_t slots)
{
    uint64_t bytes = 0;
    for (uint32_t block = 0; block < t->model->config.layers; block++)
        for (uint32_t slot = 0; t->held[block].chunk != PD_NOT_HELD && slot < slots; slot++)
            if (pd_transformer_place(t, slot, block) < t->away.away_places) bytes += place_bytes(t, block);
    return bytes;
}

void pd_transformer_attach_files(struct pd_transformer *t, struct pd_spill *spill)
{
    t->away.spill = spill;
}

void pd_transformer_begin(struct pd_transformer *t, bool learns, float scale)
{
    t->scale = scale;
    pd_experts_begin(t);
    t->away.learns = learns;
    pd_fp8_forget(t);
}

/* ---- memory ---- */

static uint32_t turn_count(const struct pd_transformer *t)
{
    uint32_t count = 0;
    for (uint32_t block = 0; block <= t->model->config.layers; block++) {
        const struct pd_held *held = &t->held[block];
        const bool is_first = block == 0 || t->held[block - 1].chunk != held->chunk;
        if (held->chunk != PD_NOT_HELD && is_first) count += 2 * held->depth;
    }
    return count;
}

/* Blocks of a chunk are consecutive, as are the turns of its micro-batches. */
static uint32_t turn_of(const struct pd_transformer *t, uint32_t slot, uint32_t block)
{
    uint32_t before = 0;
    for (uint32_t b = 0; b <= block; b++) {
        const struct pd_held *held = &t->held[b];
        const bool is_first = b == 0 || t->held[b - 1].chunk != held->chunk;
        if (held->chunk != PD_NOT_HELD && is_first && held->chunk != t->held[block].chunk) before += 2 * held->depth;
    }
    return before + 2 * (slot % t->held[block].depth) + block % 2;
}

pd_status pd_activations_new(struct pd_transformer *t, struct pd_error *err)
{
    const uint32_t count = turn_count(t);
    find_away_places(t);
    if (!pd_activations_are_away(t)) return PD_OK;
    t->away.turns = calloc(count + 1ull, sizeof *t->away.turns);
    t->away.turn_place = calloc(count + 1ull, sizeof *t->away.turn_place);
    if (!t->away.turns || !t->away.turn_place) PD_FAIL(err, PD_NO_MEMORY, "model: no memory for %u turns", count);
    for (uint32_t i = 0; i < count; i++)
        t->away.turn_place[i] = PD_NOT_HELD;
    for (int i = 0; i < REGIONS; i++)
        t->away.region_place[i] = PD_NOT_HELD;
    return PD_OK;
}

void pd_activations_free(struct pd_transformer *t)
{
    free(t->away.turns);
    free(t->away.turn_place);
}

void pd_activations_take(struct pd_transformer *t, struct pd_arena *arena)
{
    if (!pd_activations_are_away(t)) return;
    const uint64_t stream = pd_round_up(pd_transformer_stream_bytes(t), PD_VFS_ALIGN);
    for (uint32_t i = 0; i < turn_count(t); i++)
        t->away.turns[i] = pd_arena_take(arena, PD_MEMORY_ACTIVATIONS, stream);
    for (int i = 0; i < REGIONS; i++)
        t->away.regions[i] = pd_arena_take(arena, PD_MEMORY_ACTIVATIONS, t->away.region_bytes);
    for (uint32_t place = t->away.away_places; place < block_places(t); place++) {
        const uint32_t block = block_of_place(t, place);
        char *own = pd_arena_take(arena, PD_MEMORY_ACTIVATIONS, place_bytes(t, block));
        t->stream[place] = own;
        pd_activations_carve(t, block, &t->blocks[place], own + stream);
    }
}

/* ---- forward ---- */

/* Waits until nothing of a region's data is being written. */
static pd_status clear_region(struct pd_transformer *t, uint32_t region, struct pd_error *err)
{
    const uint32_t place = t->away.region_place[region];
    t->away.region_place[region] = PD_NOT_HELD;
    t->away.is_back[region] = false;
    if (place == PD_NOT_HELD) return PD_OK;
    PD_TRY(pd_spill_wait(t->away.spill, input_span(place), err));
    return kept_bytes(t, block_of_place(t, place)) ? pd_spill_wait(t->away.spill, kept_span(place), err) : PD_OK;
}

static pd_status next_region(struct pd_transformer *t, uint32_t place, uint32_t *ret_region, struct pd_error *err)
{
    *ret_region = t->away.next_region;
    t->away.next_region = (t->away.next_region + 1) % REGIONS;
    PD_TRY(clear_region(t, *ret_region, err));
    t->away.region_place[*ret_region] = place;
    return PD_OK;
}

static char *kept_of(const struct pd_transformer *t, uint32_t region)
{
    return t->away.regions[region] + pd_round_up(pd_transformer_stream_bytes(t), PD_VFS_ALIGN);
}

pd_status pd_activations_input(struct pd_transformer *t, uint32_t slot, uint32_t block, void **ret_stream,
                               struct pd_error *err)
{
    const uint32_t place = pd_transformer_place(t, slot, block);
    if (pd_activations_are_away(t) && !stays(t, place)) {
        const uint32_t turn = turn_of(t, slot, block), before = t->away.turn_place[turn];
        if (before != PD_NOT_HELD) PD_TRY(pd_spill_wait(t->away.spill, input_span(before), err));
        t->away.turn_place[turn] = PD_NOT_HELD;
        t->stream[place] = t->away.turns[turn];
    }
    *ret_stream = t->stream[place];
    return PD_OK;
}

pd_status pd_activations_open(struct pd_transformer *t, uint32_t slot, uint32_t block, struct pd_error *err)
{
    const uint32_t place = pd_transformer_place(t, slot, block);
    uint32_t region;
    if (!pd_activations_are_away(t) || stays(t, place)) return PD_OK;
    PD_TRY(next_region(t, PD_NOT_HELD, &region, err));
    pd_activations_carve(t, block, &t->blocks[place], kept_of(t, region));
    return PD_OK;
}

pd_status pd_activations_close(struct pd_transformer *t, uint32_t slot, uint32_t block, struct pd_error *err)
{
    const uint32_t place = pd_transformer_place(t, slot, block);
    if (!pd_activations_are_away(t) || stays(t, place) || !t->away.learns) return PD_OK;
    PD_TRY(pd_spill_write(t->away.spill, input_span(place), t->stream[place], err));
    t->away.turn_place[turn_of(t, slot, block)] = place;
    if (!kept_bytes(t, block)) return PD_OK;
    const uint32_t region = (t->away.next_region + REGIONS - 1) % REGIONS;
    t->away.region_place[region] = place;
    return pd_spill_write(t->away.spill, kept_span(place), kept_of(t, region), err);
}

/* ---- backward ---- */

static uint32_t find_region(const struct pd_transformer *t, uint32_t place)
{
    for (uint32_t i = 0; i < REGIONS; i++)
        if (t->away.region_place[i] == place && t->away.is_back[i]) return i;
    return PD_NOT_HELD;
}

pd_status pd_transformer_prefetch(struct pd_transformer *t, uint32_t slot, uint32_t block, struct pd_error *err)
{
    const uint32_t place = pd_transformer_place(t, slot, block);
    uint32_t region;
    if (!pd_activations_are_away(t) || stays(t, place) || find_region(t, place) != PD_NOT_HELD) return PD_OK;
    PD_TRY(next_region(t, place, &region, err));
    t->away.is_back[region] = true;
    PD_TRY(pd_spill_wait(t->away.spill, input_span(place), err)); /* it may still be in flight */
    PD_TRY(pd_spill_read(t->away.spill, input_span(place), t->away.regions[region], err));
    if (!kept_bytes(t, block)) return PD_OK;
    PD_TRY(pd_spill_wait(t->away.spill, kept_span(place), err));
    return pd_spill_read(t->away.spill, kept_span(place), kept_of(t, region), err);
}

pd_status pd_activations_ensure(struct pd_transformer *t, uint32_t slot, uint32_t block, struct pd_error *err)
{
    const uint32_t place = pd_transformer_place(t, slot, block);
    if (!pd_activations_are_away(t) || stays(t, place) || t->rehearses) return PD_OK;
    PD_TRY(pd_transformer_prefetch(t, slot, block, err));
    const uint32_t region = find_region(t, place);
    PD_TRY(clear_region(t, region, err));
    t->stream[place] = t->away.regions[region];
    pd_activations_carve(t, block, &t->blocks[place], kept_of(t, region));
    return PD_OK;
}
