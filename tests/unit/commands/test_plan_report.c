/* What `perdure plan` says, of plans that are made here. */
#include "tools/commands/plan_report.h"

#include <criterion/criterion.h>
#include <criterion/redirect.h>
#include <stdio.h>
#include <string.h>

static void open_subject(struct pd_config *config, struct pd_model **model)
{
    struct pd_error err;
    cr_assert_eq(pd_config_parse("test", "run: {dir: r}\ndata: {train: a}\n", NULL, 0, config, &err), PD_OK, "%s",
                 err.message);
    cr_assert_eq(pd_model_new(&config->model, model, &err), PD_OK, "%s", err.message);
}

/* NCCL's bytes are a rank's as others are: text and JSON count them. */
Test(plan_report, a_rung_of_the_ladder_counts_libraries)
{
    const struct pd_machine machine = {.name = "small", .device_bytes = 100};
    struct pd_plan_rung rungs[] = {{.name = "beside", .world = 2}, {.name = "within", .world = 2}};
    struct pd_config config;
    struct pd_model *model;
    struct pd_error err;
    char text[8192];
    cr_redirect_stdout();
    open_subject(&config, &model);
    const struct pd_plan_subject subject = {&config, model, &machine};
    rungs[0].worst.bytes[PD_MEMORY_BUFFERS] = rungs[1].worst.bytes[PD_MEMORY_BUFFERS] = 90;
    rungs[0].worst.library_bytes = 11;
    rungs[1].worst.library_bytes = 10;
    cr_assert_eq(pd_plan_print_ladder(&subject, rungs, 2, &err), PD_OK, "%s", err.message);
    cr_assert_eq(pd_plan_print_json(&subject, NULL, 0, rungs, 2, 0, &err), PD_OK, "%s", err.message);
    (void)fflush(stdout);
    text[fread(text, 1, sizeof text - 1, cr_get_redirected_stdout())] = '\0';
    const char *beside = strstr(text, "\nbeside"), *within = strstr(text, "\nwithin"), *json = strstr(text, "\"ladder\"");
    cr_assert(beside && within && json, "%s", text);
    const char *found[] = {strstr(beside, "too large"), strstr(within, "fits"), strstr(json, "\"fits\": false"),
                           strstr(json, "\"fits\": true")};
    cr_expect(found[0] && found[0] < within, "%s", text);
    cr_expect(found[1] && found[1] < json, "%s", text);
    cr_expect(found[2] && found[3] && found[2] < found[3], "%s", text);
    pd_model_free(model);
    pd_config_deinit(&config);
}
