/* What tensor-parallel ranks exchange, how often and behind which products: windows of rows, and halves of a micro-batch. The bits
 * are those of one rank. */
#include "tests/helpers/model_world.h"

/* Rows that go window by window, and other windows with other ranks. */
Test(transformer_exchanges, windows)
{
    struct test_case c = llama;
    c.sequences = 250;
    check_cuts(with(c, 8, 1));
}

/* A device's window is the whole micro-batch: rows to all, terms to those who keep the rows, twice. Recomputed in full, forward
 * comes again but for its end. Gradients of weights are multiplied behind three of those of backward, and one of the head's. */
Test(transformer_exchanges, a_block_makes_four_exchanges_each_way)
{
    static const uint32_t in_backward[] = {[PD_RECOMPUTE_NONE] = 4, [PD_RECOMPUTE_SELECTIVE] = 4, [PD_RECOMPUTE_FULL] = 7};
    for (int recompute = PD_RECOMPUTE_NONE; recompute <= PD_RECOMPUTE_FULL; recompute++) {
        struct test_case c = with(llama, 8, 1);
        struct world w;
        c.heads = c.kv_heads = 8;
        c.on_device = true;
        c.recompute = (enum pd_recompute)recompute;
        c.tp = 8;
        run_world(&w, &c);
        cr_expect_eq(w.exchanges[0], 4, "%u", w.exchanges[0]);
        cr_expect_eq(w.exchanges[1], in_backward[recompute], "%d: %u", recompute, w.exchanges[1]);
        cr_expect_eq(w.hidden[0], 0, "%d: %u", recompute, w.hidden[0]);
        cr_expect_eq(w.hidden[1], 3, "%d: %u", recompute, w.hidden[1]);
        cr_expect_eq(w.hidden[2], 1, "%d: %u", recompute, w.hidden[2]);
        world_deinit(&w);
    }
}

/* By halves there are twice as many exchanges. In forward nothing is multiplied behind the first half's first and the second
 * half's last; with one sequence, whose attention needs both halves, nor behind the terms of the first half's attention. In
 * backward all but the last of the MLP's have something. */
Test(transformer_exchanges, halves_hide_exchanges)
{
    for (uint32_t sequences = 1; sequences <= 3; sequences++) {
        struct test_case c = with(llama, 8, 1);
        struct world w;
        c.heads = c.kv_heads = 8;
        c.on_device = c.halves = true;
        c.sequences = sequences;
        c.length = 40;
        c.tp = 8;
        run_world(&w, &c);
        cr_expect_eq(w.exchanges[0], 8, "%u: %u", sequences, w.exchanges[0]);
        cr_expect_eq(w.exchanges[1], 8, "%u: %u", sequences, w.exchanges[1]);
        cr_expect_eq(w.hidden[0], sequences == 1 ? 5 : 6, "%u: %u", sequences, w.hidden[0]);
        cr_expect_eq(w.hidden[1], 7, "%u: %u", sequences, w.hidden[1]);
        world_deinit(&w);
    }
}

/* One sequence, an even number and an odd one; on a CPU several windows a half; pieces of sequences; all that forward does. */
Test(transformer_exchanges, halves)
{
    struct test_case c = llama;
    c.halves = true;
    c.heads = 12;
    for (uint32_t sequences = 1; sequences <= 4; sequences++)
        for (int on_device = 0; on_device < 2; on_device++) {
            c.sequences = sequences;
            c.on_device = on_device;
            c.recompute = (enum pd_recompute)(sequences % 3);
            check_cuts(with(c, 4, 1));
            check_cuts(with(c, 2, 2));
        }
    c.on_device = false;
    c.sequences = 251;
    check_cuts(with(c, 8, 1));
    c = qwen3;
    c.halves = c.on_device = true;
    c.sequences = 5;
    c.dtype = PD_BF16;
    c.recompute = PD_RECOMPUTE_FULL;
    check_cuts(with(c, 4, 1));
    c = gpt2;
    c.halves = c.on_device = true;
    c.length = 5;
    c.sequences = 1; /* too few rows for halves */
    check_cuts(with(c, 8, 1));
    c.sequences = 2;
    check_cuts(with(c, 8, 1));
}
