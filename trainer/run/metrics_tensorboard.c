/* Event files for TensorBoard in <run.dir>/tensorboard, one per start, read in name order.
 *
 *   record   u64 length, u32 masked crc32c of it, the event, u32 masked crc32c of the event; little-endian
 *   event    protobuf: 1 wall_time (double), 2 step (int64), 3 file_version (string), 5 summary, 7 session_log
 *   summary  repeated 1 value: 1 tag (string), 2 simple_value (float)
 *   session_log  1 status; START at step S makes readers discard step S and later ones: they are recomputed
 *   source   TensorFlow: tensorflow/core/lib/io/record_writer.h, core/util/event.proto, core/framework/summary.proto
 *
 * A record is one write: a killed process leaves whole records, except a cut last one, which readers skip.
 */
#include "trainer/run/metrics_sink.h"

#include "ckpt/base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define EVENT_BYTES_MAX 4096u

struct tensorboard {
    int file;
    bool has_started; /* the session is noted */
    char path[4200];
    uint32_t crc_table[256];
};

/* ---- bytes ---- */

struct bytes {
    uint8_t data[EVENT_BYTES_MAX];
    size_t count;
};

static void metrics_tensorboard_put(struct bytes *b, const void *data, size_t count)
{
    PD_CHECK(b->count + count <= sizeof b->data);
    memcpy(b->data + b->count, data, count);
    b->count += count;
}

static void put_varint(struct bytes *b, uint64_t value)
{
    do {
        const uint8_t byte = (uint8_t)((value & 127) | (value > 127 ? 128 : 0));
        metrics_tensorboard_put(b, &byte, 1);
    } while (value >>= 7);
}

enum wire { WIRE_VARINT = 0, WIRE_64 = 1, WIRE_BYTES = 2, WIRE_32 = 5 };

static void put_key(struct bytes *b, unsigned field, enum wire wire)
{
    put_varint(b, field << 3 | wire);
}

static void put_bytes(struct bytes *b, unsigned field, const void *data, size_t count)
{
    put_key(b, field, WIRE_BYTES);
    put_varint(b, count);
    metrics_tensorboard_put(b, data, count);
}

/* Castagnoli's polynomial, reflected. */
static void make_crc_table(uint32_t table[256])
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
        table[i] = crc;
    }
}

static uint32_t masked_crc(const struct tensorboard *t, const void *data, size_t count)
{
    const uint8_t *p = data;
    uint32_t crc = ~0u;
    for (size_t i = 0; i < count; i++)
        crc = t->crc_table[(crc ^ p[i]) & 255] ^ crc >> 8;
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static pd_status write_record(struct tensorboard *t, const struct bytes *event, struct pd_error *err)
{
    struct bytes record = {.count = 0};
    const uint64_t length = event->count;
    const uint32_t of_length = masked_crc(t, &length, sizeof length), of_event = masked_crc(t, event->data, event->count);
    metrics_tensorboard_put(&record, &length, sizeof length);
    metrics_tensorboard_put(&record, &of_length, sizeof of_length);
    metrics_tensorboard_put(&record, event->data, event->count);
    metrics_tensorboard_put(&record, &of_event, sizeof of_event);
    const ssize_t written = write(t->file, record.data, record.count);
    if (written == (ssize_t)record.count) return PD_OK;
    PD_FAIL_ERRNO(err, written < 0 ? errno : ENOSPC, "%s: appending", t->path);
}

/* ---- events ---- */

static void begin_event(struct bytes *event, double time, uint64_t step)
{
    event->count = 0;
    put_key(event, 1, WIRE_64);
    metrics_tensorboard_put(event, &time, sizeof time);
    put_key(event, 2, WIRE_VARINT);
    put_varint(event, step);
}

static void add_scalar(struct bytes *summary, const char *tag, double value)
{
    struct bytes one = {.count = 0};
    const float number = (float)value;
    put_bytes(&one, 1, tag, strlen(tag));
    put_key(&one, 2, WIRE_32);
    metrics_tensorboard_put(&one, &number, sizeof number);
    put_bytes(summary, 1, one.data, one.count);
}

static pd_status write_session_start(struct tensorboard *t, const struct pd_metrics_line *line, struct pd_error *err)
{
    static const uint8_t start[] = {1 << 3 | WIRE_VARINT, 1};
    struct bytes event;
    begin_event(&event, line->time, line->step.step);
    put_bytes(&event, 7, start, sizeof start);
    return write_record(t, &event, err);
}

/* ---- the sink ---- */

static bool tensorboard_is_wanted(const struct pd_config *config)
{
    return config->metrics.tensorboard;
}

static pd_status metrics_tensorboard_open_file(struct tensorboard *t, const struct pd_metrics_options *options,
                                               struct pd_error *err)
{
    char host[64] = "host";
    snprintf(t->path, sizeof t->path, "%.4000s/tensorboard", options->config->run.dir);
    if (mkdir(t->path, 0777) && errno != EEXIST) PD_FAIL_ERRNO(err, errno, "%s: making it", t->path);
    (void)gethostname(host, sizeof host - 1);
    const uint64_t now_ns = pd_clock_wall_ns();
    const size_t length = strlen(t->path);
    snprintf(t->path + length, sizeof t->path - length, "/events.out.tfevents.%010llu.%03llu.%.60s.%d",
             (unsigned long long)(now_ns / 1000000000), (unsigned long long)(now_ns / 1000000 % 1000), host, (int)getpid());
    t->file = open(t->path, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (t->file < 0) PD_FAIL_ERRNO(err, errno, "%s: making it", t->path);
    static const char version[] = "brain.Event:2";
    struct bytes event;
    begin_event(&event, (double)pd_clock_wall_ns() / 1e9, 0);
    put_bytes(&event, 3, version, sizeof version - 1);
    const pd_status st = write_record(t, &event, err);
    if (st) close(t->file);
    return st;
}

static pd_status tensorboard_open(const struct pd_metrics_options *options, void **ret_sink, struct pd_error *err)
{
    struct tensorboard *t = calloc(1, sizeof *t);
    if (!t) PD_FAIL(err, PD_NO_MEMORY, "metrics: no memory");
    make_crc_table(t->crc_table);
    const pd_status st = metrics_tensorboard_open_file(t, options, err);
    if (st) {
        free(t);
        return st;
    }
    *ret_sink = t;
    return PD_OK;
}

static pd_status tensorboard_write(void *sink, const struct pd_metrics_line *line, struct pd_error *err)
{
    struct tensorboard *t = sink;
    struct bytes event, summary = {.count = 0};
    if (!t->has_started) PD_TRY(write_session_start(t, line, err));
    t->has_started = true;
    begin_event(&event, line->time, line->step.step);
    const struct pd_metrics_step *s = &line->step;
    add_scalar(&summary, "loss/train", s->result.loss);
    if (!isnan(s->validation_loss)) add_scalar(&summary, "loss/validation", s->validation_loss);
    add_scalar(&summary, "optimizer/gradient_norm", s->result.gradient_norm);
    add_scalar(&summary, "optimizer/learning_rate", s->result.learning_rate);
    add_scalar(&summary, "speed/tokens_per_second", line->tokens_per_second);
    add_scalar(&summary, "speed/gemm_share", line->gemm_share);
    add_scalar(&summary, "speed/step_seconds", s->seconds);
    for (int i = 0; i < PD_STEP_STAGES; i++) {
        char tag[64];
        snprintf(tag, sizeof tag, "stages/%s_seconds", pd_step_stage_names[i]);
        add_scalar(&summary, tag, s->result.stage_seconds[i]);
    }
    add_scalar(&summary, "memory/resident_bytes", (double)s->memory_bytes);
    if (s->device_free_bytes) add_scalar(&summary, "memory/device_free_bytes", (double)s->device_free_bytes);
    add_scalar(&summary, "checkpoint/newest_step", (double)s->last_checkpoint);
    if (s->saves) add_scalar(&summary, "checkpoint/save_seconds", s->save_seconds);
    if (s->saves) add_scalar(&summary, "checkpoint/stall_seconds", s->stall_seconds);
    put_bytes(&event, 5, summary.data, summary.count);
    return write_record(t, &event, err);
}

static void tensorboard_close(void *sink)
{
    struct tensorboard *t = sink;
    close(t->file);
    free(t);
}

const struct pd_metrics_sink pd_metrics_tensorboard = {"metrics.tensorboard", .is_wanted = tensorboard_is_wanted,
                                                       .open = tensorboard_open, .write = tensorboard_write,
                                                       .close = tensorboard_close};
