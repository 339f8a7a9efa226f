#include "trainer/status/seal.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/uio.h>

static const char *const sides[] = {[PD_SEAL_LAUNCHER] = "launcher", [PD_SEAL_RANK] = "rank"};

bool pd_seal_random(uint8_t *ret_bytes, size_t bytes)
{
    return getrandom(ret_bytes, bytes, 0) == (ssize_t)bytes;
}

static bool hmac(const uint8_t *key, const void *data, size_t bytes, uint8_t ret[32])
{
    unsigned int length = 32;
    return HMAC(EVP_sha256(), key, 32, data, bytes, ret, &length) && length == 32;
}

/* HMAC(secret, purpose, side, start, both nonces) */
static bool derive(const struct pd_seal *s, const char *purpose, enum pd_seal_side side, uint8_t ret[32])
{
    uint8_t text[160] = {0};
    strncpy((char *)text, purpose, 16);
    strncpy((char *)text + 16, sides[side], 16);
    for (int i = 0; i < 4; i++)
        text[32 + i] = (uint8_t)(s->start >> 8 * i);
    memcpy(text + 36, s->nonces, sizeof s->nonces);
    return hmac(s->secret, text, 36 + sizeof s->nonces, ret);
}

bool pd_seal_keys(struct pd_seal *s)
{
    s->sequence[0] = s->sequence[1] = 0;
    return derive(s, "message", PD_SEAL_LAUNCHER, s->keys[PD_SEAL_LAUNCHER]) &&
           derive(s, "message", PD_SEAL_RANK, s->keys[PD_SEAL_RANK]);
}

bool pd_seal_prove(const struct pd_seal *s, enum pd_seal_side side, uint8_t ret_proof[PD_MESSAGE_PROOF_BYTES])
{
    return derive(s, "proof", side, ret_proof);
}

bool pd_seal_is_proof(const struct pd_seal *s, enum pd_seal_side side, const uint8_t *proof, size_t bytes)
{
    uint8_t right[PD_MESSAGE_PROOF_BYTES];
    return bytes == sizeof right && pd_seal_prove(s, side, right) && CRYPTO_memcmp(proof, right, sizeof right) == 0;
}

static bool mac_of(const struct pd_seal *s, enum pd_seal_side side, const struct pd_message *m,
                   uint8_t ret_mac[PD_MESSAGE_MAC_BYTES])
{
    uint8_t full[32];
    const size_t bytes = 8 + PD_MESSAGE_HEADER_BYTES + (size_t)m->bytes;
    uint8_t small[8 + PD_MESSAGE_HEADER_BYTES + PD_MESSAGE_BYTES_MAX], *text = bytes <= sizeof small ? small : malloc(bytes);
    if (!text) return false;
    for (int i = 0; i < 8; i++)
        text[i] = (uint8_t)(s->sequence[side] >> 8 * i);
    pd_message_header(m, text + 8);
    if (m->bytes) memcpy(text + 8 + PD_MESSAGE_HEADER_BYTES, m->data, m->bytes);
    const bool is_made = hmac(s->keys[side], text, bytes, full);
    if (text != small) free(text);
    memcpy(ret_mac, full, PD_MESSAGE_MAC_BYTES);
    return is_made;
}

bool pd_seal_next(struct pd_seal *s, enum pd_seal_side side, const struct pd_message *m,
                  uint8_t ret_mac[PD_MESSAGE_MAC_BYTES])
{
    if (!mac_of(s, side, m, ret_mac)) return false;
    s->sequence[side]++;
    return true;
}

bool pd_seal_accepts(struct pd_seal *s, enum pd_seal_side side, const struct pd_message *m,
                     const uint8_t mac[PD_MESSAGE_MAC_BYTES])
{
    uint8_t right[PD_MESSAGE_MAC_BYTES];
    if (!mac_of(s, side, m, right) || CRYPTO_memcmp(mac, right, sizeof right) != 0) return false;
    s->sequence[side]++;
    return true;
}

static bool can_send(int fd, int limit_ms)
{
    struct pollfd one = {.fd = fd, .events = POLLOUT};
    const int ready = poll(&one, 1, limit_ms);
    return ready > 0 || (ready < 0 && errno == EINTR);
}

bool pd_seal_send(int fd, struct pd_seal *seal, enum pd_seal_side side, const struct pd_message *m, int limit_ms)
{
    uint8_t header[PD_MESSAGE_HEADER_BYTES], mac[PD_MESSAGE_MAC_BYTES];
    pd_message_header(m, header);
    if (seal && !pd_seal_next(seal, side, m, mac)) return false;
    struct iovec pieces[3] = {{header, sizeof header}, {(void *)(uintptr_t)m->data, m->bytes}, {mac, seal ? sizeof mac : 0}};
    struct msghdr packet = {.msg_iov = pieces, .msg_iovlen = 3};
    while (pieces[0].iov_len + pieces[1].iov_len + pieces[2].iov_len) {
        ssize_t sent = sendmsg(fd, &packet, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0 && errno != EINTR && (errno != EAGAIN || !can_send(fd, limit_ms))) return false;
        for (int i = 0; i < 3 && sent > 0; i++) {
            const size_t piece = (size_t)sent < pieces[i].iov_len ? (size_t)sent : pieces[i].iov_len;
            pieces[i].iov_base = (uint8_t *)pieces[i].iov_base + piece;
            pieces[i].iov_len -= piece;
            sent -= (ssize_t)piece;
        }
    }
    return true;
}
