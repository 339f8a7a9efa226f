/* One micro-batch through a model cut by heads, ffn columns, vocabulary rows and token pieces: ranks as threads against one
 * rank with the same numerics, bit for bit; and the numerics against one another by value. */
#include "tests/helpers/families.h"
#include "tests/helpers/model_world.h"

Test(transformer_parallel, tensor_llama)
{
    for (uint32_t virtual_tp = 2; virtual_tp <= 8; virtual_tp *= 2)
        check_cuts(with(llama, virtual_tp, 1));
}

Test(transformer_parallel, tensor_gpt2)
{
    for (uint32_t virtual_tp = 2; virtual_tp <= 8; virtual_tp *= 2)
        check_cuts(with(gpt2, virtual_tp, 1));
}

/* Key-value heads over more ranks than there are of them, and ranks without any head. */
Test(transformer_parallel, shared_key_value_heads)
{
    static const uint32_t heads[][2] = {{12, 3}, {6, 1}, {5, 5}, {3, 3}, {8, 2}, {3, 1}};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        struct test_case c = llama;
        c.heads = heads[i][0];
        c.kv_heads = heads[i][1];
        c.tied = i % 2;
        for (uint32_t virtual_tp = 4; virtual_tp <= 8; virtual_tp *= 2)
            check_cuts(with(c, virtual_tp, 1));
    }
}

/* The weights of norms of heads are sums over the heads of all ranks: of some that have none, of chunks whose key-value heads
 * another computes. */
Test(transformer_parallel, norms_of_heads)
{
    static const uint32_t heads[][2] = {{6, 3}, {12, 3}, {6, 1}, {5, 5}, {3, 3}};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        struct test_case c = qwen3;
        c.heads = heads[i][0];
        c.kv_heads = heads[i][1];
        for (uint32_t virtual_tp = 2; virtual_tp <= 8; virtual_tp *= 2)
            check_cuts(with(c, virtual_tp, 1));
    }
    check_cuts(with(qwen3, 1, 4));
    struct test_case c = qwen3;
    c.dtype = PD_BF16;
    c.recompute = PD_RECOMPUTE_SELECTIVE;
    check_cuts(with(c, 4, 2));
    c.on_device = true;
    c.recompute = PD_RECOMPUTE_FULL;
    check_cuts(with(c, 2, 2));
}

Test(transformer_parallel, sequence_llama)
{
    for (uint32_t virtual_sp = 2; virtual_sp <= 8; virtual_sp *= 2)
        check_cuts(with(llama, 1, virtual_sp));
}

Test(transformer_parallel, sequence_gpt2)
{
    for (uint32_t virtual_sp = 2; virtual_sp <= 4; virtual_sp *= 2)
        check_cuts(with(gpt2, 1, virtual_sp));
}

/* As many key-value heads as ranks: rows are exchanged for heads. With 8 ranks there are too few. */
Test(transformer_parallel, sequence_by_heads)
{
    struct test_case c = llama;
    c.heads = 8;
    c.kv_heads = 4;
    c.length = 32;
    for (uint32_t virtual_sp = 2; virtual_sp <= 8; virtual_sp *= 2)
        check_cuts(with(c, 1, virtual_sp));
    check_cuts(with(c, 2, 2));
    c.documents = false;
    c.sequences = 1;
    c.dtype = PD_BF16;
    c.recompute = PD_RECOMPUTE_SELECTIVE;
    check_cuts(with(c, 4, 2));
    c.family = PD_FAMILY_QWEN3;
    c.bias = false;
    c.documents = true;
    c.sequences = 2;
    c.on_device = true;
    c.recompute = PD_RECOMPUTE_FULL;
    c.heads = 16; /* a chunk has half of the queries of a key-value head */
    check_cuts(with(c, 8, 2));
    c.kv_heads = 16;
    check_cuts(with(c, 2, 4));
}

Test(transformer_parallel, both)
{
    struct test_case c = llama;
    c.heads = 12;
    check_cuts(with(c, 2, 2));
    check_cuts(with(c, 4, 2));
    check_cuts(with(gpt2, 2, 4));
}

Test(transformer_parallel, half_precision)
{
    for (int dtype = 0; dtype < 2; dtype++) {
        struct test_case c = llama;
        c.heads = 12;
        c.dtype = dtype ? PD_F16 : PD_BF16;
        check_cuts(with(c, 4, 1));
        check_cuts(with(c, 2, 2));
    }
}

Test(transformer_parallel, recomputed)
{
    struct test_case c = llama;
    c.recompute = PD_RECOMPUTE_FULL;
    check_cuts(with(c, 2, 2));
    c.recompute = PD_RECOMPUTE_SELECTIVE;
    check_cuts(with(c, 2, 2));
}

/* Ranks whose memory the host cannot touch: only operations and communicators go there. */
Test(transformer_parallel, far)
{
    struct test_case c = llama;
    c.on_device = true;
    c.heads = 12;
    check_cuts(with(c, 4, 2));
    c.kv_heads = 1;
    c.dtype = PD_BF16;
    check_cuts(with(c, 2, 2));
    c = gpt2;
    c.on_device = true;
    c.recompute = PD_RECOMPUTE_SELECTIVE;
    check_cuts(with(c, 8, 1));
    check_cuts(with(c, 2, 4));
}

/* Fewer rows than ranks. */
Test(transformer_parallel, few_rows)
{
    struct test_case c = llama;
    c.sequences = 1;
    c.length = 5;
    check_cuts(with(c, 8, 1));
    check_cuts(with(c, 4, 2));
}

/* Logits of one rank do not fit at once, those of two do. */
Test(transformer_parallel, runs_of_logits)
{
    struct test_case c = llama;
    c.sequences = 30;
    c.vocab = 50257;
    check_cuts(with(c, 2, 1));
}

/* Logits that exist for some columns at a time: chunks of one, of several, with a remainder, empty ones; several runs of rows. */
Test(transformer_parallel, logits_of_columns)
{
    static const uint32_t columns[] = {5, 8, 400};
    for (size_t i = 0; i < sizeof columns / sizeof *columns; i++) {
        struct test_case c = llama;
        c.logits_columns = columns[i];
        check_cuts(with(c, 8, 1));
        c.on_device = true;
        check_cuts(with(c, 4, 2));
        c = gpt2;
        c.logits_columns = columns[i];
        check_cuts(with(c, 2, 4));
        c.vocab = 5; /* of 8 chunks */
        check_cuts(with(c, 8, 1));
    }
    struct test_case c = llama;
    c.sequences = 30;
    c.vocab = 50257;
    c.logits_columns = PD_LOGITS_COLUMNS;
    check_cuts(with(c, 2, 1));
}

/* Logits of the activation type, whole and some columns at a time. */
Test(transformer_parallel, logits_of_16_bits)
{
    struct test_case c = llama;
    c.dtype = c.logits_dtype = PD_BF16;
    check_cuts(with(c, 8, 1));
    check_cuts(with(c, 2, 2));
    c.logits_columns = 8;
    check_cuts(with(c, 4, 1));
    c = gpt2;
    c.dtype = c.logits_dtype = PD_F16;
    check_cuts(with(c, 2, 4));
}

static void expect_same_numerics(struct test_case a, struct test_case b)
{
    struct world one, other;
    run_world(&one, &a);
    run_world(&other, &b);
    expect_same(&one, &other);
    world_deinit(&one);
    world_deinit(&other);
}

/* On a CPU nothing else makes a difference but the sums of exponentials, which have one part then. */
Test(transformer_parallel, logits_of_all_columns_have_the_bits_of_rows)
{
    const struct test_case *all[] = {&llama, &gpt2, &qwen3};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        struct test_case c = *all[i];
        c.logits_columns = c.vocab;
        expect_same_numerics(*all[i], c);
        c.logits_columns = 8192;
        expect_same_numerics(*all[i], c);
    }
}

/* Other numerics round elsewhere and compute the same. */
static void check_same_values(const struct test_case *c, const struct test_case *other)
{
    struct world whole, cut;
    const uint32_t virtual_tp = other->virtual_tp, virtual_sp = other->virtual_sp;
    run_world(&whole, c);
    run_world(&cut, other);
    for (uint64_t i = 0; i < (uint64_t)c->sequences * c->length; i++)
        cr_assert_float_eq(whole.out.losses[i], cut.out.losses[i], 2e-5, "loss %lu", i);
    const uint32_t tensors = whole.model->tensors.count;
    for (uint32_t t = 0; t < tensors + (c->tied ? 1 : 0); t++) {
        float largest = 0.1f;
        for (uint64_t i = whole.offset[t]; i < whole.offset[t + 1]; i++)
            largest = fmaxf(largest, fabsf(whole.out.gradients[i]));
        for (uint64_t i = whole.offset[t]; i < whole.offset[t + 1]; i++)
            cr_assert_lt(fabsf(whole.out.gradients[i] - cut.out.gradients[i]), 2e-5f * largest,
                         "virtual %u %u: tensor %u [%lu]: %.9g %.9g", virtual_tp, virtual_sp, t, i - whole.offset[t],
                         whole.out.gradients[i], cut.out.gradients[i]);
    }
    world_deinit(&whole);
    world_deinit(&cut);
}

static void check_values(const struct test_case *c, uint32_t virtual_tp, uint32_t virtual_sp)
{
    struct test_case other = with(*c, virtual_tp, virtual_sp);
    check_same_values(c, &other);
    for (other.logits_columns = 3; other.logits_columns < 80; other.logits_columns *= 5)
        check_same_values(c, &other);
}

Test(transformer_parallel, values)
{
    static const uint32_t numerics[][2] = {{2, 1}, {8, 1}, {1, 2}, {1, 8}, {4, 4}};
    for (size_t i = 0; i < sizeof numerics / sizeof numerics[0]; i++) {
        check_values(&llama, numerics[i][0], numerics[i][1]);
        check_values(&gpt2, numerics[i][0], numerics[i][1]);
        check_values(&qwen3, numerics[i][0], numerics[i][1]);
    }
}
