/* Rows of the residual stream, shared by tensor-parallel ranks (Korthikanti et al. 2022, "Reducing Activation Recomputation
 * in Large Transformer Models", section 4.2). Every tp rank makes the same calls in the same order.
 *
 * Rows are processed in windows of t->shared.window_rows, like sums over chunks. Rank r of n has rows [r*w/n, (r+1)*w/n),
 * rounded down, of each window of w rows. It stores those of all windows contiguously, in memory for the most that any rank
 * has. Matrices of all rows are called whole. With one rank its rows are the whole, and nothing is moved. */
#include "ckpt/base/checked.h"
#include "trainer/model/transformer_internal.h"

#define WINDOW_BYTES (4ull << 20) /* of partial sums, which stay in a processor's cache */
#define WINDOW_BYTES_DEVICE (32ull << 20)
#define WINDOW_BYTES_DEVICES (256ull << 20) /* if an exchange follows each window */

static uint64_t window_rows_max(const struct pd_transformer *t)
{
    const bool is_far = t->options.on_device;
    const uint64_t row_bytes = t->model->config.hidden * sizeof(float) * t->tp.chunks;
    const bool is_shared = t->partition.tp > 1;
    const uint64_t bytes = !is_far ? WINDOW_BYTES : is_shared ? WINDOW_BYTES_DEVICES : WINDOW_BYTES_DEVICE;
    const uint64_t rows = pd_max_u64(bytes / row_bytes / 16 * 16, 64);
    return is_shared && !is_far ? pd_min_u64(rows, pd_max_u64((t->rows + 1) / 2, 64)) : rows;
}

/* On a CPU one window's sums travel while the next is multiplied. On a device few large exchanges are better: a window is
 * the whole micro-batch, unless its partial sums are too large. */
static uint64_t window_rows(const struct pd_transformer *t)
{
    const uint64_t rows = window_rows_max(t), windows = (t->rows + rows - 1) / rows; /* of about equal size */
    return pd_min_u64(((t->rows + windows - 1) / windows + 15) / 16 * 16, t->rows);
}

static uint64_t row_bytes(const struct pd_transformer *t)
{
    return t->model->config.hidden * t->element_bytes;
}

/* A window, and the place of this rank's rows. */
struct window {
    uint64_t begin, rows;
    struct pd_range mine; /* of the micro-batch */
    uint64_t kept;        /* the first of them is this one of all that the rank keeps */
};

static bool next_window(const struct pd_transformer *t, struct window *w)
{
    w->begin += w->rows;
    if (w->begin >= t->rows) return false;
    w->rows = pd_min_u64(t->shared.window_rows, t->rows - w->begin);
    w->mine = pd_rows_slice(t, w->rows, t->partition.tp_rank);
    w->mine.begin += w->begin;
    w->mine.end += w->begin;
    w->kept = pd_rows_before(t, w->begin);
    return true;
}

void pd_rows_init(struct pd_transformer *t)
{
    const uint64_t ranks = t->partition.tp;
    t->shared.window_rows = window_rows(t);
    for (uint64_t row = 0; row < t->rows; row += t->shared.window_rows)
        t->shared.kept_rows += (pd_min_u64(t->shared.window_rows, t->rows - row) + ranks - 1) / ranks;
}

struct pd_range pd_rows_slice(const struct pd_transformer *t, uint64_t rows, uint32_t rank)
{
    return (struct pd_range){rank * rows / t->partition.tp, (rank + 1ull) * rows / t->partition.tp};
}

uint64_t pd_rows_before(const struct pd_transformer *t, uint64_t window)
{
    const struct pd_range mine = pd_rows_slice(t, t->shared.window_rows, t->partition.tp_rank);
    return window / t->shared.window_rows * (mine.end - mine.begin);
}

uint32_t pd_rows_owner(const struct pd_transformer *t, uint64_t row)
{
    const uint64_t begin = row / t->shared.window_rows * t->shared.window_rows;
    const uint64_t rows = pd_min_u64(t->shared.window_rows, t->rows - begin);
    return (uint32_t)(((row - begin + 1) * t->partition.tp - 1) / rows);
}

void pd_rows_take(struct pd_transformer *t, struct pd_arena *arena)
{
    struct pd_shared_rows *s = &t->shared;
    const uint64_t whole = t->rows * row_bytes(t), windows = (t->rows + s->window_rows - 1) / s->window_rows;
    const uint32_t pieces = (uint32_t)windows * (t->partition.tp - 1);
    if (t->partition.tp == 1 || (!t->has_blocks && !t->has_head)) return;
    s->norm = pd_arena_take(arena, PD_MEMORY_ACTIVATIONS, whole);
    s->rstd = pd_arena_take(arena, PD_MEMORY_ACTIVATIONS, t->rows * sizeof(float));
    if (pd_norm_is_layer(t)) s->mean = pd_arena_take(arena, PD_MEMORY_ACTIVATIONS, t->rows * sizeof(float));
    if (t->options.backward || t->has_head) s->whole = pd_arena_take(arena, PD_MEMORY_ACTIVATIONS, whole);
    pd_peer_transfer_init(&s->gather, t->options.tp, pieces, pieces, arena);
}

/* Every rank has its rows in place in its `whole`; sends them to the same place on all others. */
static pd_status start_gather(struct pd_transformer *t, char *whole, struct pd_error *err)
{
    struct pd_peer_transfer *x = &t->shared.gather;
    const uint64_t bytes = row_bytes(t);
    pd_peer_transfer_clear(x);
    for (struct window w = {0}; next_window(t, &w);)
        for (uint32_t r = 0; r < t->partition.tp; r++) {
            const struct pd_range theirs = pd_rows_slice(t, w.rows, r);
            if (r == t->partition.tp_rank) continue;
            pd_peer_transfer_send(x, r, whole + w.mine.begin * bytes, (w.mine.end - w.mine.begin) * bytes);
            pd_peer_transfer_recv(x, r, whole + (w.begin + theirs.begin) * bytes, (theirs.end - theirs.begin) * bytes);
        }
    return pd_peer_transfer_start(x, err);
}

const void *pd_rows_whole(const struct pd_transformer *t, const void *rows)
{
    return t->partition.tp == 1 ? rows : t->shared.whole;
}

/* Copies kept rows to or from their places among all. */
static pd_status copy_kept(struct pd_transformer *t, char *rows, char *whole, bool to_whole, struct pd_error *err)
{
    const uint64_t bytes = row_bytes(t);
    for (struct window w = {0}; next_window(t, &w);) {
        char *kept = rows + w.kept * bytes, *place = whole + w.mine.begin * bytes;
        if (w.mine.begin == w.mine.end) continue;
        PD_TRY(pd_math_copy(t->math, to_whole ? place : kept, to_whole ? kept : place, (w.mine.end - w.mine.begin) * bytes,
                            err));
    }
    return PD_OK;
}

pd_status pd_rows_bring(struct pd_transformer *t, const void *rows, struct pd_error *err)
{
    return t->partition.tp == 1 ? PD_OK : pd_transformer_gather_rows(t, (void *)(uintptr_t)rows, t->shared.whole, err);
}

pd_status pd_transformer_gather_rows(struct pd_transformer *t, void *rows, void *whole, struct pd_error *err)
{
    if (rows == whole) return PD_OK;
    PD_TRY(copy_kept(t, rows, whole, true, err));
    PD_TRY(start_gather(t, whole, err));
    return pd_peer_transfer_wait(&t->shared.gather, err);
}

pd_status pd_transformer_keep_rows(struct pd_transformer *t, void *whole, void *rows, struct pd_error *err)
{
    return rows == whole ? PD_OK : copy_kept(t, rows, whole, false, err);
}

pd_status pd_rows_norm_start(struct pd_transformer *t, const struct pd_norm *norm, struct pd_error *err)
{
    const uint64_t bytes = row_bytes(t);
    if (t->partition.tp == 1) return pd_norm_forward(t->math, norm, err);
    for (struct window w = {0}; next_window(t, &w);) {
        struct pd_norm n = *norm;
        n.rows = w.mine.end - w.mine.begin;
        n.x = (const char *)norm->x + w.kept * bytes;
        n.out = (char *)norm->out + w.mine.begin * bytes;
        if (n.rows) PD_TRY(pd_norm_forward(t->math, &n, err));
    }
    return start_gather(t, norm->out, err);
}

pd_status pd_rows_norm_wait(struct pd_transformer *t, struct pd_error *err)
{
    return pd_peer_transfer_wait(&t->shared.gather, err);
}
