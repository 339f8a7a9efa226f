/* Proves that both ends of a connection know a launch's secret, and computes the MAC of every later message.
 *
 *   the secret   32 random bytes per launch, in a file that only the user can read (starter.h); never sent over the
 *                connection
 *   the proof    rank -> launcher: nonce. launcher -> rank: nonce, HMAC(secret, "launcher", start, both nonces). rank ->
 *                launcher: HMAC(secret, "rank", start, both nonces). `start` excludes ranks of an earlier start
 *   the MAC      first 16 bytes of HMAC(key, sequence, header, payload). Each direction has its own key and sequence, so a
 *                message cannot be changed, repeated, dropped or moved
 *
 * Nothing is encrypted: an eavesdropper can read messages, and the configuration in them.
 *   source  RFC 2104 (HMAC), FIPS 180-4 (SHA-256), over OpenSSL's libcrypto */
#pragma once

#include "trainer/status/message.h"

#define PD_SEAL_SECRET_BYTES 32u

enum pd_seal_side { PD_SEAL_LAUNCHER, PD_SEAL_RANK };

struct pd_seal {
    uint8_t secret[PD_SEAL_SECRET_BYTES];
    uint32_t start;
    uint8_t nonces[2][PD_MESSAGE_NONCE_BYTES]; /* by side */
    uint8_t keys[2][32];                       /* one per sending side */
    uint64_t sequence[2];
};

PD_MUST_USE bool pd_seal_random(uint8_t *ret_bytes, size_t bytes); /* false: the kernel has none */
/* Call once both nonces are set. False: libcrypto failed */
PD_MUST_USE bool pd_seal_keys(struct pd_seal *seal);
PD_MUST_USE bool pd_seal_prove(const struct pd_seal *seal, enum pd_seal_side side,
                               uint8_t ret_proof[PD_MESSAGE_PROOF_BYTES]);
/* Compares in constant time. */
bool pd_seal_is_proof(const struct pd_seal *seal, enum pd_seal_side side, const uint8_t *proof, size_t bytes);
/* The MAC of the next message of `side`; advances the sequence. */
PD_MUST_USE bool pd_seal_next(struct pd_seal *seal, enum pd_seal_side side, const struct pd_message *message,
                              uint8_t ret_mac[PD_MESSAGE_MAC_BYTES]);
bool pd_seal_accepts(struct pd_seal *seal, enum pd_seal_side side, const struct pd_message *message,
                     const uint8_t mac[PD_MESSAGE_MAC_BYTES]);

/* Sends everything, sealed if `seal` is not NULL; gives up after `limit_ms` without buffer space. */
bool pd_seal_send(int fd, struct pd_seal *seal, enum pd_seal_side side, const struct pd_message *message, int limit_ms);
