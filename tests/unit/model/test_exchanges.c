/* What tensor-parallel ranks exchange, how often and behind which products: windows of rows. The bits are those of one rank. */
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
