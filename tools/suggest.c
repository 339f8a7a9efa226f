#include "tools/suggest.h"

#include "ckpt/base/nearest.h"

#include <stdio.h>
#include <string.h>

enum { COMMANDS_MAX = 32 };

/* Words stand between spaces. */
static const struct meant {
    const char *words, *name;
} commands_meant[] = {
    {" resume continue start run fit pretrain finetune launch restart ", "perdure train"},
    {" generate infer inference chat complete ", "perdure sample"},
    {" evaluate test perplexity validate ppl ", "perdure eval"},
    {" monitor status top tail progress follow ", "perdure watch"},
    {" new create config configure setup ", "perdure init"},
    {" check info env diagnose ", "perdure doctor"},
    {" memory estimate dryrun dry-run ", "perdure plan"},
    {" plot chart charts html ", "perdure report"},
    {" benchmark speed ", "perdure bench"},
    {" checkpoint checkpoints ", "perdure ckpt"},
    {" ls list ", "perdure ckpt ls"},
    {" show info inspect cat describe ", "perdure ckpt show"},
    {" verify check validate fsck scrub ", "perdure ckpt verify"},
    {" diff compare cmp ", "perdure ckpt diff"},
    {" stats statistics summary norms ", "perdure ckpt stats"},
    {" reshard reshape repartition relayout ", "perdure ckpt reshard"},
    {" import load ", "perdure ckpt import"},
    {" export convert merge consolidate save ", "perdure ckpt export"},
    {" prune rm remove delete del clean gc ", "perdure ckpt prune"},
    {" pack tokenize tokenise prepare preprocess build ", "perdure data pack"},
    {" inspect show info head cat ", "perdure data inspect"},
};

static const struct meant options_meant[] = {
    {" max-new-tokens max-tokens n-predict length num-tokens n ", "count"},
    {" out outfile output-file dest to ", "output"},
    {" ranks gpus nproc np world-size nproc-per-node devices nodes ", "world"},
    {" ranks tp pp dp sp world degrees ", "layout"},
    {" world gpus nproc np ", "ranks"},
    {" force ", "overwrite"},
    {" type to ", "format"},
    {" text input ", "prompt"},
    {" file text dataset validation ", "data"},
    {" keep last ", "keep-last"},
    {" precision type ", "dtype"},
    {" interval refresh ", "every"},
    {" gpu gpu-memory vram ", "device-memory"},
    {" run-dir output-dir out-dir ", "dir"},
    {" preset size ", "model"},
};

static bool has_word(const char *words, const char *word)
{
    char between[64];
    return (size_t)snprintf(between, sizeof between, " %s ", word) < sizeof between && strstr(words, between);
}

const char *pd_suggest_command(const struct pd_command *commands, const char *parent, const char *word, char *ret,
                               size_t bytes)
{
    const char *names[COMMANDS_MAX], *near;
    const size_t above = strlen(parent);
    uint32_t count = 0;
    for (size_t i = 0; i < sizeof commands_meant / sizeof *commands_meant; i++) {
        const struct meant *m = &commands_meant[i];
        if (strncmp(m->name, parent, above) == 0 && m->name[above] == ' ' && has_word(m->words, word)) return m->name;
    }
    for (const struct pd_command *c = commands; c->name; c++)
        if (c->summary && count < COMMANDS_MAX) names[count++] = c->name;
    near = pd_nearest_name(word, names, count);
    if (near) snprintf(ret, bytes, "%s %s", parent, near);
    return near ? ret : NULL;
}

const char *pd_suggest_option(const char *word, const char *const *names, uint32_t count)
{
    for (size_t i = 0; i < sizeof options_meant / sizeof *options_meant; i++)
        for (uint32_t k = 0; k < count; k++)
            if (strcmp(options_meant[i].name, names[k]) == 0 && has_word(options_meant[i].words, word)) return names[k];
    return pd_nearest_name(word, names, count);
}
