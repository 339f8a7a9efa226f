/* Combines partial sums of chunks or ranks, with the order and bits of cpu_finish.c. The host knows which parts exist, so it
 * works out the tree: how many sums are joined after each part. */
#include "trainer/math/cuda/each.h"

#define WIDE 4
#define PARTS_MAX 256u /* existing parts; the program is a kernel parameter, limited to 4 KiB */
#define DEPTH_MAX 33u  /* places are 32 bits */

struct program {
    uint32_t count;
    const float *part[PARTS_MAX];
    uint8_t joins[PARTS_MAX]; /* sums joined before a part, when it arrives */
};

struct finish {
    program tree;
    uint64_t ld;
    float scale;
    const void *bias;
    enum pd_dtype bias_dtype;
    struct pd_matrix residual, out;

    template <int N> __device__ void sum_tree(uint64_t i, float (&x)[N]) const
    {
        float stack[DEPTH_MAX][N];
        uint32_t depth = 0;
        for (uint32_t p = 0; p < tree.count; p++) {
            for (uint32_t j = 0; j < tree.joins[p]; j++, depth--)
                for (int k = 0; k < N; k++)
                    stack[depth - 2][k] = stack[depth - 2][k] + stack[depth - 1][k];
            pd_get_n<PD_F32, N>(tree.part[p], i, stack[depth++]);
        }
        for (; depth > 1; depth--)
            for (int k = 0; k < N; k++)
                stack[depth - 2][k] = stack[depth - 2][k] + stack[depth - 1][k];
        for (int k = 0; k < N; k++)
            x[k] = stack[0][k];
    }

    /* Up to two parts stay in registers. */
    template <int N> __device__ void sum(uint64_t i, float (&x)[N]) const
    {
        for (int k = 0; k < N; k++)
            x[k] = 0.0f;
        if (tree.count > 2) sum_tree<N>(i, x);
        if (tree.count == 1 || tree.count == 2) pd_get_n<PD_F32, N>(tree.part[0], i, x);
        if (tree.count != 2) return;
        float other[N];
        pd_get_n<PD_F32, N>(tree.part[1], i, other);
        for (int k = 0; k < N; k++)
            x[k] = x[k] + other[k];
    }

    template <int N> __device__ void at(uint64_t row, uint64_t column) const
    {
        float x[N], term[N];
        sum<N>(row * ld + column, x);
        if (scale != 1.0f)
            for (int k = 0; k < N; k++)
                x[k] = scale * x[k];
        if (bias) {
            pd_get_any<N>(bias_dtype, bias, column, term);
            for (int k = 0; k < N; k++)
                x[k] = x[k] + term[k];
        }
        if (residual.data) {
            pd_get_any<N>(residual.dtype, residual.data, row * residual.ld + column, term);
            for (int k = 0; k < N; k++)
                x[k] = x[k] + term[k];
        }
        pd_put_any<N>(out.dtype, out.data, row * out.ld + column, x);
    }
};

/* As in cpu_finish.c: lower pairs on the stack meet higher up in the tree. */
static bool make_program(const struct pd_finish *f, program *p)
{
    uint32_t stack[DEPTH_MAX], depth = 0;
    p->count = 0;
    for (uint32_t place = 0; place < f->part_count; place++) {
        if (!f->parts[place]) continue;
        if (p->count == PARTS_MAX) return false;
        p->part[p->count] = f->parts[place];
        p->joins[p->count] = 0;
        for (; depth > 1 && (stack[depth - 2] ^ stack[depth - 1]) < (stack[depth - 1] ^ place); depth--)
            p->joins[p->count]++;
        stack[depth++] = place;
        p->count++;
    }
    return true;
}

static bool is_aligned(const struct pd_finish *f, const finish *each)
{
    bool aligned = each->ld % WIDE == 0 && pd_is_16_aligned(f->bias) && pd_is_16_aligned(f->out.data) &&
                   f->out.ld % WIDE == 0 && pd_is_16_aligned(f->residual.data) &&
                   (!f->residual.data || f->residual.ld % WIDE == 0);
    for (uint32_t i = 0; i < each->tree.count; i++)
        aligned = aligned && pd_is_16_aligned(each->tree.part[i]);
    return aligned;
}

pd_status pd_cuda_finish(void *stream, const struct pd_finish *f, struct pd_error *err)
{
    finish each = {};
    if (f->rows == 0 || f->columns == 0) return PD_OK;
    if (!make_program(f, &each.tree))
        PD_FAIL(err, PD_UNSUPPORTED, "a sum of more than %u parts on a GPU: choose a smaller numerics.virtual_tp",
                PARTS_MAX);
    each.ld = f->ld_parts ? f->ld_parts : f->columns;
    each.scale = f->scale;
    each.bias = f->bias;
    each.bias_dtype = f->bias_dtype;
    each.residual = f->residual;
    each.out = f->out;
    return pd_each_row_launch<WIDE>(stream, f->rows, f->columns, is_aligned(f, &each), each, err);
}
