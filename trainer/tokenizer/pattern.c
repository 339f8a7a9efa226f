#include "trainer/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define MATCH_LIMIT 10000000u /* steps */
#define HEAP_LIMIT_KIB (64u << 10)
#define JIT_STACK_BYTES (1u << 20)
#define UNICODE_KNOWN 16 /* what pd_unicode_added reaches up to */

struct pd_pattern {
    pcre2_code *code;
    bool compiled; /* to machine code */
};

struct pd_pattern_scratch {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
};

static pd_status compile(const char *source, const char *text, struct pd_pattern *pattern, struct pd_error *err)
{
    int problem;
    PCRE2_SIZE offset;
    PCRE2_UCHAR words[160];
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) PD_FAIL(err, PD_NO_MEMORY, "no memory for a regular expression");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, 64);
    pattern->code =
        pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &problem, &offset, context);
    pcre2_compile_context_free(context);
    if (pattern->code) {
        pattern->compiled = pcre2_jit_compile(pattern->code, PCRE2_JIT_COMPLETE) == 0;
        return PD_OK;
    }
    pcre2_get_error_message(problem, words, sizeof words);
    PD_FAIL(err, PD_CORRUPT, "regular expression \"%.200s\": %s", source, (const char *)words);
}

static bool knows_new_code_points(void)
{
    char version[32] = "";
    pcre2_config(PCRE2_CONFIG_UNICODE_VERSION, version);
    return strtol(version, NULL, 10) >= UNICODE_KNOWN;
}

pd_status pd_pattern_new(const char *source, struct pd_pattern **ret_pattern, struct pd_error *err)
{
    struct pd_string text = {0};
    struct pd_pattern *pattern = calloc(1, sizeof *pattern);
    if (!pattern) PD_FAIL(err, PD_NO_MEMORY, "no memory for a regular expression");
    pd_status status = pd_pattern_translate(source, !knows_new_code_points(), &text, err);
    if (!status) status = compile(source, text.bytes, pattern, err);
    pd_string_deinit(&text);
    if (status) {
        free(pattern);
        return status;
    }
    *ret_pattern = pattern;
    return PD_OK;
}

void pd_pattern_free(struct pd_pattern *pattern)
{
    if (!pattern) return;
    pcre2_code_free(pattern->code);
    free(pattern);
}

pd_status pd_pattern_scratch_new(struct pd_pattern_scratch **ret_scratch, struct pd_error *err)
{
    struct pd_pattern_scratch *scratch = calloc(1, sizeof *scratch);
    if (scratch) {
        scratch->data = pcre2_match_data_create(1, NULL);
        scratch->context = pcre2_match_context_create(NULL);
        scratch->stack = pcre2_jit_stack_create(32u << 10, JIT_STACK_BYTES, NULL);
    }
    if (!scratch || !scratch->data || !scratch->context) {
        pd_pattern_scratch_free(scratch);
        PD_FAIL(err, PD_NO_MEMORY, "no memory to match regular expressions");
    }
    pcre2_set_match_limit(scratch->context, MATCH_LIMIT);
    pcre2_set_heap_limit(scratch->context, HEAP_LIMIT_KIB);
    if (scratch->stack) pcre2_jit_stack_assign(scratch->context, NULL, scratch->stack);
    *ret_scratch = scratch;
    return PD_OK;
}

void pd_pattern_scratch_free(struct pd_pattern_scratch *scratch)
{
    if (!scratch) return;
    pcre2_match_data_free(scratch->data);
    pcre2_match_context_free(scratch->context);
    pcre2_jit_stack_free(scratch->stack);
    free(scratch);
}

pd_status pd_pattern_find(const struct pd_pattern *pattern, struct pd_pattern_scratch *scratch, const char *text,
                          size_t bytes, size_t from, size_t *ret_start, size_t *ret_end, struct pd_error *err)
{
    int found = pattern->compiled ? pcre2_jit_match(pattern->code, (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK,
                                                    scratch->data, scratch->context)
                                  : pcre2_match(pattern->code, (PCRE2_SPTR)text, bytes, from, PCRE2_NO_UTF_CHECK,
                                                scratch->data, scratch->context);
    if (found >= 0) {
        const PCRE2_SIZE *bounds = pcre2_get_ovector_pointer(scratch->data);
        if (bounds[1] < bounds[0]) PD_FAIL(err, PD_UNSUPPORTED, "a regular expression ends a match before its start (\\K)");
        *ret_start = bounds[0];
        *ret_end = bounds[1];
        return PD_OK;
    }
    *ret_start = SIZE_MAX;
    if (found == PCRE2_ERROR_NOMATCH) return PD_OK;
    PCRE2_UCHAR words[160];
    pcre2_get_error_message(found, words, sizeof words);
    PD_FAIL(err, PD_INVALID, "the tokenizer's regular expression cannot be matched at byte %zu of the text: %s", from,
            (const char *)words);
}
