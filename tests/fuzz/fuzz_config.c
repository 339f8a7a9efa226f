/* The first byte says whether a user wrote it or a run; then YAML, and behind each zero byte an override of the command line.
 * A configuration that is taken prints as one that is taken, is the same, and prints the same; but for one that knows no
 * lanes, which nobody prints. */
#include "tests/fuzz/target.h"
#include "trainer/config/config.h"

#include <stdlib.h>
#include <string.h>

enum { OVERRIDES_MAX = 8 };

static void print_and_parse(const struct pd_config *config)
{
    struct pd_config again;
    struct pd_resume_difference difference;
    struct pd_error err = {0};
    char *text, *text_again;
    if (pd_config_print(config, &text, &err)) abort();
    if (pd_config_parse_saved(text, NULL, 0, &again, &err)) abort();
    if (pd_config_compare(config, &again, &difference, 1)) abort();
    if (pd_config_print(&again, &text_again, &err) || strcmp(text, text_again) != 0) abort();
    pd_config_deinit(&again);
    free(text);
    free(text_again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const char *overrides[OVERRIDES_MAX];
    uint32_t count = 0;
    struct pd_config config;
    struct pd_error err = {0};
    if (!bytes) return 0;
    char *text = strndup((const char *)data + 1, bytes - 1), *all = malloc(bytes);
    if (!text || !all) abort();
    memcpy(all, data + 1, bytes - 1);
    all[bytes - 1] = '\0';
    for (char *at = all + strlen(all); at < all + bytes - 1 && count < OVERRIDES_MAX; at += strlen(at))
        overrides[count++] = ++at;
    const pd_status st = data[0] & 1 ? pd_config_parse_saved(text, overrides, count, &config, &err)
                                     : pd_config_parse("run.yaml", text, overrides, count, &config, &err);
    if (st && !err.message[0]) abort();
    if (!st && config.numerics.lanes) print_and_parse(&config);
    if (!st) pd_config_deinit(&config);
    free(text);
    free(all);
    return 0;
}
