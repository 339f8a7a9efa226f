/* A pickle. What comes of it is walked as readers do: by what they expect, with a bound. */
#include "resharder/torch/pickle.h"
#include "tests/fuzz/target.h"

#include <stdlib.h>

static void walk(const struct pd_pickle_node *node, int depth)
{
    uint64_t sizes[8], u = 0;
    uint32_t count = 0;
    double x = 0;
    if (!node || depth == 8) return;
    (void)pd_pickle_text(node);
    (void)pd_pickle_global(node);
    (void)pd_pickle_is_u64(node, &u);
    (void)pd_pickle_is_number(node, &x);
    if (pd_pickle_is_sizes(node, 8, sizes, &count) && count > 8) abort();
    (void)pd_pickle_member(node, "param");
    walk(pd_pickle_argument(node, 0), depth + 1);
    walk(pd_pickle_field(node, "state_dict_metadata"), depth + 1);
    for (uint32_t i = 0; i < 4; i++)
        walk(pd_pickle_at(node, i), depth + 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct pd_pickle *pickle = NULL;
    struct pd_error err = {0};
    uint64_t used = 0;
    if (pd_pickle_parse("input", data, bytes, &pickle, &used, &err)) {
        if (!err.message[0] || pickle) abort();
        return 0;
    }
    if (used > bytes || !pd_pickle_root(pickle)) abort();
    walk(pd_pickle_root(pickle), 0);
    pd_pickle_free(pickle);
    return 0;
}
