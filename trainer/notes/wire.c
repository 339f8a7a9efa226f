#include "trainer/notes/wire.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

static uint32_t number_at(const uint8_t *at, uint32_t bytes)
{
    uint32_t value = 0;
    for (uint32_t i = 0; i < bytes; i++)
        value |= (uint32_t)at[i] << 8 * i;
    return value;
}

static void number_put(uint8_t *at, uint32_t value, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> 8 * i);
}

int64_t pd_wire_take(const uint8_t *data, size_t bytes, uint32_t bytes_max, struct pd_wire_frame *ret_frame)
{
    if (bytes < PD_WIRE_HEADER_BYTES) return 0;
    const uint32_t follow = number_at(data, 4), kind = number_at(data + 4, 2);
    if (follow > bytes_max || kind < PD_WIRE_HELLO || kind >= PD_WIRE_KINDS) return -1;
    if (bytes - PD_WIRE_HEADER_BYTES < follow) return 0;
    *ret_frame = (struct pd_wire_frame){.kind = (enum pd_wire_kind)kind,
                                        .note = number_at(data + 6, 2),
                                        .rank = number_at(data + 8, 4),
                                        .bytes = follow,
                                        .data = data + PD_WIRE_HEADER_BYTES};
    return (int64_t)PD_WIRE_HEADER_BYTES + follow;
}

void pd_wire_header(const struct pd_wire_frame *frame, uint8_t ret_header[PD_WIRE_HEADER_BYTES])
{
    number_put(ret_header, frame->bytes, 4);
    number_put(ret_header + 4, frame->kind, 2);
    number_put(ret_header + 6, frame->note, 2);
    number_put(ret_header + 8, frame->rank, 4);
}

void pd_wire_text(const uint8_t *data, size_t count, char *ret_text, size_t bytes)
{
    size_t length = 0;
    for (; length < count && length < bytes - 1 && data[length]; length++)
        ret_text[length] = data[length] >= ' ' && data[length] <= '~' ? (char)data[length] : '?';
    ret_text[length] = '\0';
}

uint32_t pd_wire_hello_print(const struct pd_wire_hello *hello, uint8_t *ret_data)
{
    return (uint32_t)snprintf((char *)ret_data, PD_WIRE_BYTES_MAX, "%s%s\n%s\n", hello->token, hello->build, hello->host);
}

bool pd_wire_hello_parse(const struct pd_wire_frame *f, struct pd_wire_hello *ret_hello)
{
    if (f->kind != PD_WIRE_HELLO || f->bytes < PD_WIRE_TOKEN_BYTES) return false;
    const uint8_t *build = f->data + PD_WIRE_TOKEN_BYTES, *end = f->data + f->bytes;
    const uint8_t *line = memchr(build, '\n', (size_t)(end - build));
    const uint8_t *last = line ? memchr(line + 1, '\n', (size_t)(end - line - 1)) : NULL;
    if (!last || last + 1 != end) return false;
    pd_wire_text(f->data, PD_WIRE_TOKEN_BYTES, ret_hello->token, sizeof ret_hello->token);
    pd_wire_text(build, (size_t)(line - build), ret_hello->build, sizeof ret_hello->build);
    pd_wire_text(line + 1, (size_t)(last - line - 1), ret_hello->host, sizeof ret_hello->host);
    return true;
}

bool pd_wire_word_parse(const struct pd_wire_frame *f, struct pd_wire_word *ret_word)
{
    if (f->kind != PD_WIRE_WORD || f->bytes != sizeof *ret_word) return false;
    const uint8_t *host = f->data + offsetof(struct pd_wire_word, host),
                  *kernel = f->data + offsetof(struct pd_wire_word, kernel);
    memcpy((void *)ret_word, f->data, sizeof *ret_word);
    pd_wire_text(host, sizeof ret_word->host, ret_word->host, sizeof ret_word->host);
    pd_wire_text(kernel, sizeof ret_word->kernel, ret_word->kernel, sizeof ret_word->kernel);
    return ret_word->process > 0;
}

bool pd_wire_watch_parse(const struct pd_wire_frame *f, int32_t *ret_process, int32_t *ret_fd)
{
    if (f->kind != PD_WIRE_WATCH || f->bytes != 8) return false;
    const uint32_t process = number_at(f->data, 4), fd = number_at(f->data + 4, 4);
    if (process == 0 || process > INT32_MAX || fd > INT32_MAX) return false;
    *ret_process = (int32_t)process;
    *ret_fd = (int32_t)fd;
    return true;
}

bool pd_wire_token_is(const char given[PD_WIRE_TOKEN_BYTES + 1], const char token[PD_WIRE_TOKEN_BYTES + 1])
{
    volatile unsigned char difference = 0;
    for (uint32_t i = 0; i < PD_WIRE_TOKEN_BYTES; i++)
        difference |= (unsigned char)(given[i] ^ token[i]);
    return difference == 0;
}

static bool has_room(int fd, int limit_ms)
{
    struct pollfd one = {.fd = fd, .events = POLLOUT};
    const int ready = poll(&one, 1, limit_ms);
    return ready > 0 || (ready < 0 && errno == EINTR);
}

bool pd_wire_send(int fd, const struct pd_wire_frame *frame, int limit_ms)
{
    uint8_t header[PD_WIRE_HEADER_BYTES];
    pd_wire_header(frame, header);
    struct iovec pieces[2] = {{header, sizeof header}, {(void *)(uintptr_t)frame->data, frame->bytes}};
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = 2};
    while (pieces[0].iov_len + pieces[1].iov_len) {
        ssize_t sent = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno != EINTR && (errno != EAGAIN || !has_room(fd, limit_ms))) return false;
        for (int i = 0; i < 2 && sent > 0; i++) {
            const size_t piece = (size_t)sent < pieces[i].iov_len ? (size_t)sent : pieces[i].iov_len;
            pieces[i].iov_base = (uint8_t *)pieces[i].iov_base + piece;
            pieces[i].iov_len -= piece;
            sent -= (ssize_t)piece;
        }
    }
    return true;
}
