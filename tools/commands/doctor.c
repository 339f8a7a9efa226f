#include "ckpt/base/fault.h"
#include "tools/command.h"
#include "tools/doctor/findings.h"
#include "tools/output.h"
#include "trainer/run/signals.h"

#include <stdio.h>
#include <string.h>

static const char *const state_names[] = {"ok", "limited", "missing", "unused"};
static const char *const state_marks[] = {"ok", "!", "MISSING", "-"};

static pd_status print_json(const struct pd_findings *findings, const uint32_t counts[4], struct pd_error *err)
{
    struct pd_json_writer w;
    pd_json_writer_init_object(&w, 2);
    pd_json_string(&w, "version", PERDURE_VERSION);
    pd_json_array_begin(&w, "findings");
    for (uint32_t i = 0; i < findings->count; i++) {
        const struct pd_finding *f = &findings->items[i];
        pd_json_object_begin(&w, NULL);
        pd_json_string(&w, "what", f->what);
        pd_json_string(&w, "state", state_names[f->state]);
        pd_json_string(&w, "here", f->here);
        pd_json_string(&w, "advice", f->advice[0] ? f->advice : NULL);
        pd_json_object_end(&w);
    }
    pd_json_array_end(&w);
    pd_json_u64(&w, "limited", counts[PD_FINDING_LIMITED]);
    pd_json_u64(&w, "missing", counts[PD_FINDING_MISSING]);
    return pd_output_json(&w, err);
}

static pd_status print_table(const struct pd_findings *findings, const uint32_t counts[4], struct pd_error *err)
{
    static const char *const headings[] = {"", "WHAT", "HERE"};
    struct pd_table table;
    printf("perdure %s\n", PERDURE_VERSION);
    pd_table_init(&table, headings, 3);
    for (uint32_t i = 0; i < findings->count; i++) {
        const struct pd_finding *f = &findings->items[i];
        pd_table_row(&table, (const char *const[]){state_marks[f->state], f->what, f->here});
        if (f->advice[0]) pd_table_row(&table, (const char *const[]){"", "", f->advice});
    }
    PD_TRY(pd_table_print(&table, err));
    printf("%u missing, %u limited\n", counts[PD_FINDING_MISSING], counts[PD_FINDING_LIMITED]);
    return PD_OK;
}

/* The one thing that was named: what else is missing may not be needed. */
static pd_status check_directory(const struct pd_findings *findings, const char *dir, struct pd_error *err)
{
    for (uint32_t i = 0; i < findings->count; i++)
        if (!strcmp(findings->items[i].what, "directory") && findings->items[i].state == PD_FINDING_MISSING)
            PD_FAIL(err, PD_IO, "%s cannot take checkpoints; name a directory that can: perdure doctor DIR", dir);
    return PD_OK;
}

pd_status pd_cmd_doctor(int argc, char **argv, struct pd_error *err)
{
    const char *dirs[2] = {"."};
    uint32_t count, counts[4] = {0};
    bool json = false;
    struct pd_findings findings = {0};
    const struct pd_usage usage = {
        .arguments = "[DIR]",
        .doc = "Shows what this machine offers, what perdure uses of it, what is missing and how to get it. DIR (default: "
               ".) is where checkpoints will be saved; doctor tries there what a save needs.",
        .json = &json,
        .words = dirs,
        .words_max = 2,
        .word_count = &count};
    PD_COMMAND_PARSE(&usage, argc, argv, err);
    if (count > 1) PD_FAIL(err, PD_USAGE, "perdure doctor looks at one directory; \"%s\" is another", dirs[1]);
    pd_find_processor(&findings);
    pd_find_memory(&findings);
    pd_find_software(&findings);
    PD_TRY(pd_fault_configure_env(err));
    PD_TRY(pd_signals_install(err)); /* what is tried there leaves no file */
    pd_find_storage(&findings, dirs[0]);
    if (pd_signals_say_leave()) PD_FAIL(err, PD_STOPPED, "asked to leave; the same command begins anew");
    for (uint32_t i = 0; i < findings.count; i++)
        counts[findings.items[i].state]++;
    PD_TRY(json ? print_json(&findings, counts, err) : print_table(&findings, counts, err));
    return check_directory(&findings, dirs[0], err);
}
