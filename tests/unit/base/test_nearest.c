#include "ckpt/base/nearest.h"

#include <criterion/criterion.h>
#include <string.h>

Test(nearest, edits_are_counted)
{
    static const struct {
        const char *a, *b;
        uint32_t edits;
    } pairs[] = {{"", "", 0},          {"", "abc", 3},      {"abc", "", 3},  {"step", "step", 0}, {"step", "stop", 1},
                 {"step", "steps", 1}, {"step", "stpe", 1}, {"ab", "ba", 1}, {"abc", "ca", 3},    {"kitten", "sitting", 3}};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        cr_expect_eq(pd_edit_distance(pairs[i].a, pairs[i].b), pairs[i].edits, "%s %s", pairs[i].a, pairs[i].b);
        cr_expect_eq(pd_edit_distance(pairs[i].b, pairs[i].a), pairs[i].edits, "%s %s", pairs[i].b, pairs[i].a);
    }
    char one[100], other[100];
    memset(one, 'a', sizeof one);
    memset(other, 'a', sizeof other);
    one[99] = other[99] = '\0';
    other[80] = 'b'; /* behind what is looked at */
    cr_expect_eq(pd_edit_distance(one, other), 0);
}

Test(nearest, two_letters_and_one_of_four)
{
    cr_expect(pd_is_near("export", "exprot"));
    cr_expect(pd_is_near("verify", "verfy"));
    cr_expect(!pd_is_near("ls", "rm"));
    cr_expect(!pd_is_near("export", "import"));
    cr_expect(!pd_is_near("a", "abcdefg"));
    cr_expect(!pd_is_near("checkpoint", "checkpxxxt"));
}

Test(nearest, names_come_nearest_first)
{
    static const char *const names[] = {"train", "plan", "eval", "trial"};
    uint32_t indices[4];
    cr_expect_str_eq(pd_nearest_name("trian", names, 4), "train");
    cr_expect_null(pd_nearest_name("quickstart", names, 4));
    cr_expect_null(pd_nearest_name("train", names, 0));
    pd_nearest_names("trail", names, 4, indices, 4);
    cr_expect(indices[0] == 0 && indices[1] == 3 && indices[2] != indices[3], "%u %u", indices[0], indices[1]);
}

Test(nearest, names_of_models_and_devices)
{
    static const char *const names[] = {"llama-3b", "llama-33b", "llama3.1-8b", "llama3.1-70b", "gpt2-124m", "h100-80g"};
    static const struct {
        const char *name, *nearest;
    } meant[] = {{"llama-3-8b", "llama3.1-8b"},
                 {"Meta-Llama-3-8B", "llama3.1-8b"},
                 {"llama3-70b-instruct", "llama3.1-70b"},
                 {"gpt2", "gpt2-124m"},
                 {"gpt2-125m", "gpt2-124m"},
                 {"lama-3b", "llama-3b"},
                 {"h100", "h100-80g"},
                 {"NVIDIA H100 80GB HBM3", "h100-80g"},
                 {"llama3", "llama3.1-8b"}};
    for (size_t i = 0; i < sizeof meant / sizeof *meant; i++) {
        uint32_t index;
        pd_nearest_names(meant[i].name, names, 6, &index, 1);
        cr_expect_str_eq(names[index], meant[i].nearest, "%s: %s, not %s", meant[i].name, names[index], meant[i].nearest);
    }
}
