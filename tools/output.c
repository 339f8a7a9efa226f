#include "tools/output.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/grow.h"
#include "ckpt/base/words.h"
#include "trainer/config/config.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void pd_table_init(struct pd_table *table, const char *const *headings, uint32_t columns)
{
    const char *texts[PD_TABLE_COLUMNS_MAX];
    PD_CHECK(columns <= PD_TABLE_COLUMNS_MAX);
    *table = (struct pd_table){.columns = columns};
    for (uint32_t i = 0; i < columns; i++) {
        table->right[i] = headings[i][0] == '>';
        texts[i] = headings[i] + table->right[i];
    }
    pd_table_row(table, texts);
}

void pd_table_row(struct pd_table *table, const char *const *cells)
{
    table->failed = table->failed || !pd_grow(&table->cells, table->rows, table->columns * sizeof *table->cells);
    if (table->failed) return;
    char **row = table->cells + (size_t)table->rows * table->columns;
    for (uint32_t i = 0; i < table->columns; i++) {
        row[i] = strdup(cells[i]);
        if (!row[i]) table->failed = true;
    }
    table->rows++;
}

/* Counts code points, which equals the width of our texts on a terminal. */
static uint32_t shown_width(const char *text)
{
    uint32_t width = 0;
    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

static void print_cell(const char *text, uint32_t width, bool right, bool last)
{
    uint32_t shown = shown_width(text);
    int padding = shown < width ? (int)(width - shown) : 0;
    if (right)
        printf("%*s%s", padding, "", text);
    else
        printf("%s%*s", text, last ? 0 : padding, "");
    if (!last) fputs("  ", stdout);
}

/* Prints no trailing spaces. */
static void print_line(const struct pd_table *table, char *const *cells, const uint32_t *widths)
{
    uint32_t shown = table->columns;
    while (shown > 1 && !cells[shown - 1][0])
        shown--;
    for (uint32_t i = 0; i < shown; i++)
        print_cell(cells[i], widths[i], table->right[i], i + 1 == shown);
    fputc('\n', stdout);
}

void pd_table_deinit(struct pd_table *table)
{
    for (uint32_t i = 0; i < table->rows * table->columns; i++)
        free(table->cells[i]);
    free(table->cells);
    *table = (struct pd_table){0};
}

pd_status pd_table_print(struct pd_table *table, struct pd_error *err)
{
    uint32_t widths[PD_TABLE_COLUMNS_MAX] = {0};
    bool failed = table->failed;
    for (uint32_t i = 0; i < table->rows * table->columns && !failed; i++) {
        uint32_t width = shown_width(table->cells[i]);
        if (width > widths[i % table->columns]) widths[i % table->columns] = width;
    }
    for (uint32_t i = 0; i < table->rows && !failed; i++)
        print_line(table, table->cells + (size_t)i * table->columns, widths);
    pd_table_deinit(table);
    if (failed) PD_FAIL(err, PD_NO_MEMORY, "no memory for a table");
    return PD_OK;
}

static bool is_json_printed;

pd_status pd_output_json(struct pd_json_writer *writer, struct pd_error *err)
{
    const char *text;
    size_t bytes;
    pd_status status = pd_json_writer_finish(writer, &text, &bytes, err);
    if (!status) fwrite(text, 1, bytes, stdout);
    is_json_printed |= !status;
    pd_json_writer_deinit(writer);
    return status;
}

/* PD_NO_SPACE is "no_space". */
static struct pd_text code_of(pd_status status)
{
    struct pd_text t;
    snprintf(t.text, sizeof t.text, "%s", pd_status_name(status) + strlen("PD_"));
    for (char *c = t.text; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    return t;
}

void pd_output_ending(struct pd_json_writer *writer, pd_status status, const char *message)
{
    pd_json_i64(writer, "exit_code", pd_status_exit_code(status));
    pd_json_string(writer, "code", status ? code_of(status).text : NULL);
    pd_json_string(writer, "error", status ? message : NULL);
}

void pd_output_json_error(const struct pd_error *error)
{
    struct pd_json_writer w;
    if (is_json_printed) return;
    pd_json_writer_init_object(&w, 0);
    pd_output_ending(&w, error->status, error->message);
    (void)!pd_output_json(&w, NULL);
}

pd_status pd_output_config(const struct pd_config *config, bool is_json, struct pd_error *err)
{
    struct pd_json_writer w;
    char *yaml;
    PD_TRY(pd_config_print(config, &yaml, err));
    pd_json_writer_init_object(&w, 0);
    pd_json_string(&w, "config", yaml);
    pd_json_object_end(&w);
    if (!is_json) fputs(yaml, stdout);
    free(yaml);
    if (is_json) return pd_output_json(&w, err);
    pd_json_writer_deinit(&w);
    return PD_OK;
}

/* ---- reports ---- */

void pd_report_begin(struct pd_report *r, bool is_json)
{
    r->is_json = is_json;
    pd_json_writer_init_object(&r->writer, 2);
}

void pd_report_say(struct pd_report *r, const char *format, ...)
{
    va_list arguments;
    if (r->is_json) return;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
}

/* People read "step 1.2 ms" for "step_seconds": a value with a unit needs none in its name. */
static void print_row(const char *key, const char *text, enum pd_unit unit)
{
    static const char *const endings[] = {[PD_UNIT_BYTES] = "_bytes", [PD_UNIT_SECONDS] = "_seconds"};
    const char *ending = unit == PD_UNIT_BYTES || unit == PD_UNIT_SECONDS ? endings[unit] : "";
    if (unit == PD_UNIT_SECONDS && strcmp(key, "seconds") == 0) key = "time";
    int length = (int)strlen(key) - (int)strlen(ending);
    char label[64];
    if (length <= 0 || strcmp(key + length, ending) != 0) length = (int)strlen(key);
    snprintf(label, sizeof label, "%.*s", length, key);
    for (char *c = label; *c; c++)
        if (*c == '_') *c = ' ';
    printf("%-28s %s\n", label, text);
}

static struct pd_text in_unit(double value, enum pd_unit unit)
{
    struct pd_text t;
    switch (unit) {
    case PD_UNIT_BYTES:
        return pd_text_bytes((uint64_t)value);
    case PD_UNIT_SECONDS:
        if (fabs(value) >= 1 || value == 0)
            snprintf(t.text, sizeof t.text, "%.4g s", value);
        else if (fabs(value) >= 1e-3)
            snprintf(t.text, sizeof t.text, "%.4g ms", 1e3 * value);
        else
            snprintf(t.text, sizeof t.text, "%.4g us", 1e6 * value);
        break;
    case PD_UNIT_SHARE:
        snprintf(t.text, sizeof t.text, "%.2f%%", 100 * value);
        break;
    case PD_UNIT_BYTES_PER_SECOND:
        snprintf(t.text, sizeof t.text, "%.2f GB/s", 1e-9 * value);
        break;
    default:
        snprintf(t.text, sizeof t.text, "%.4g", value);
    }
    return t;
}

void pd_report_text(struct pd_report *r, const char *key, const char *text)
{
    if (r->is_json)
        pd_json_string(&r->writer, key, text);
    else
        print_row(key, text, PD_UNIT_NONE);
}

void pd_report_u64(struct pd_report *r, const char *key, uint64_t value, enum pd_unit unit)
{
    if (r->is_json)
        pd_json_u64(&r->writer, key, value);
    else
        print_row(key, unit == PD_UNIT_NONE ? pd_text_count(value).text : in_unit((double)value, unit).text, unit);
}

void pd_report_u64s(struct pd_report *r, const struct pd_json_u64_member *members)
{
    for (; members->key; members++)
        pd_report_u64(r, members->key, members->value, PD_UNIT_NONE);
}

void pd_report_double(struct pd_report *r, const char *key, double value, enum pd_unit unit)
{
    if (r->is_json)
        pd_json_double(&r->writer, key, value);
    else
        print_row(key, in_unit(value, unit).text, unit);
}

void pd_report_range(struct pd_report *r, const char *key, double value, double low, double high, enum pd_unit unit)
{
    char text[128];
    if (r->is_json) {
        pd_json_double(&r->writer, key, value);
        snprintf(text, sizeof text, "%s_low", key);
        pd_json_double(&r->writer, text, low);
        snprintf(text, sizeof text, "%s_high", key);
        pd_json_double(&r->writer, text, high);
        return;
    }
    snprintf(text, sizeof text, "%s (%s to %s)", in_unit(value, unit).text, in_unit(low, unit).text,
             in_unit(high, unit).text);
    print_row(key, text, unit);
}

pd_status pd_report_end(struct pd_report *r, struct pd_error *err)
{
    if (r->is_json) return pd_output_json(&r->writer, err);
    pd_json_writer_deinit(&r->writer);
    return PD_OK;
}

/* ---- texts ---- */

struct pd_text pd_text_bytes(uint64_t bytes)
{
    struct pd_text t;
    snprintf(t.text, sizeof t.text, "%s", pd_bytes_text((double)bytes).text);
    return t;
}

struct pd_text pd_text_count(uint64_t count)
{
    struct pd_text t;
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%" PRIu64, count), at = 0;
    for (int i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0) t.text[at++] = ',';
        t.text[at++] = digits[i];
    }
    t.text[at] = '\0';
    return t;
}

struct pd_text pd_text_plain(uint64_t number)
{
    struct pd_text t;
    snprintf(t.text, sizeof t.text, "%" PRIu64, number);
    return t;
}

struct pd_text pd_text_short(double number)
{
    static const char *const units[] = {"", " k", " M", " G", " T", " P", " E"};
    struct pd_text t;
    uint32_t unit = 0;
    for (; number >= 1000 && unit < 6; unit++)
        number /= 1000;
    snprintf(t.text, sizeof t.text,
             number < 10 && unit    ? "%.2f%s"
             : number < 100 && unit ? "%.1f%s"
                                    : "%.0f%s",
             number, units[unit]);
    return t;
}

struct pd_text pd_text_number(double number)
{
    struct pd_text t;
    snprintf(t.text, sizeof t.text, "%.6g", number);
    return t;
}

struct pd_text pd_text_hex(uint64_t number)
{
    struct pd_text t;
    snprintf(t.text, sizeof t.text, "%016" PRIx64, number);
    return t;
}

#define BAR_CELLS 24
#define BAR_SECONDS 0.2 /* between redraws */

static void show_progress(void *context, uint64_t done_bytes, uint64_t total_bytes)
{
    struct pd_shown_progress *p = context;
    const uint64_t now = pd_clock_monotonic_ns(NULL);
    const double wait = p->mode.kind == PD_PROGRESS_BAR ? BAR_SECONDS : p->mode.line_seconds;
    if (done_bytes > total_bytes) done_bytes = total_bytes;
    if ((double)(now - p->shown_ns) * 1e-9 < wait) return;
    p->shown_ns = now;
    p->is_shown = true;
    double seconds = (double)(now - p->start_ns) * 1e-9;
    const double share = total_bytes ? (double)done_bytes / (double)total_bytes : 1;
    const double rate = seconds > 0 ? (double)done_bytes / seconds : 0;
    const uint64_t left = rate > 0 && done_bytes < total_bytes ? (uint64_t)((double)(total_bytes - done_bytes) / rate) : 0;
    char bar[BAR_CELLS + 4] = "";
    if (p->mode.kind == PD_PROGRESS_BAR) {
        const int filled = (int)(share * BAR_CELLS);
        bar[0] = '[';
        memset(bar + 1, '#', (size_t)filled);
        memset(bar + 1 + filled, '.', (size_t)(BAR_CELLS - filled));
        memcpy(bar + 1 + BAR_CELLS, "] ", 3);
    }
    fprintf(stderr, "%s%s%.0f%%, %s of %s, %s/s, %llu:%02llu left%s", bar[0] ? "\r\033[K" : "", bar, 100 * share,
            pd_text_bytes(done_bytes).text, pd_text_bytes(total_bytes).text, pd_text_bytes((uint64_t)rate).text,
            (unsigned long long)(left / 60), (unsigned long long)(left % 60), bar[0] ? "" : "\n");
}

pd_inspect_progress pd_shown_progress_start(struct pd_shown_progress *p)
{
    p->mode = pd_progress_mode();
    p->start_ns = p->shown_ns = pd_clock_monotonic_ns(NULL);
    p->is_shown = false;
    return p->mode.kind == PD_PROGRESS_OFF ? NULL : show_progress;
}

void pd_shown_progress_end(const struct pd_shown_progress *p)
{
    if (p->is_shown && p->mode.kind == PD_PROGRESS_BAR) fprintf(stderr, "\r\033[K");
}
