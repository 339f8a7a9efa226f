/* Proofs that both ends of a connection know the secret of a launch, and the MAC of every message after that.
 *
 *   the secret   32 random bytes of one launch. It is in a file that only the user can read (starter.h); it never travels over
 *                the connection
 *   the proof    rank -> launcher: nonce. launcher -> rank: nonce, HMAC(secret, "launcher", start, both nonces).
 *                rank -> launcher: HMAC(secret, "rank", start, both nonces). `start` keeps out ranks of an earlier start
 *   the MAC      first 16 bytes of HMAC(key, sequence, header, payload); each direction has a key and a sequence of its own, so a
 *                message can be neither changed, nor repeated, dropped or moved
 *
 * Nothing is encrypted: an eavesdropper reads messages, and the configuration in them.
 *   source  RFC 2104 (HMAC), FIPS 180-4 (SHA-256), over OpenSSL's libcrypto */
#pragma once

#include "trainer/status/message.h"

#define PD_SEAL_SECRET_BYTES 32u

enum pd_seal_side { PD_SEAL_LAUNCHER, PD_SEAL_RANK };

struct pd_seal {
    uint8_t secret[PD_SEAL_SECRET_BYTES];
    uint32_t start;
    uint8_t nonces[2][PD_MESSAGE_NONCE_BYTES]; /* by side */
    uint8_t keys[2][32];                       /* of what each side sends */
    uint64_t sequence[2];
};

PD_MUST_USE bool pd_seal_random(uint8_t *ret_bytes, size_t bytes); /* false: the kernel gives none */
/* Once both nonces are set.   False: libcrypto fails */
PD_MUST_USE bool pd_seal_keys(struct pd_seal *seal);
PD_MUST_USE bool pd_seal_prove(const struct pd_seal *seal, enum pd_seal_side side,
                               uint8_t ret_proof[PD_MESSAGE_PROOF_BYTES]);
/* In a time that does not depend on where they differ. */
bool pd_seal_is_proof(const struct pd_seal *seal, enum pd_seal_side side, const uint8_t *proof, size_t bytes);
/* Of the next message of `side`; counts it. */
PD_MUST_USE bool pd_seal_next(struct pd_seal *seal, enum pd_seal_side side, const struct pd_message *message,
                              uint8_t ret_mac[PD_MESSAGE_MAC_BYTES]);
bool pd_seal_accepts(struct pd_seal *seal, enum pd_seal_side side, const struct pd_message *message,
                     const uint8_t mac[PD_MESSAGE_MAC_BYTES]);

/* Sends all of it, sealed where `seal` is not NULL, or gives up after `limit_ms` without room. */
bool pd_seal_send(int fd, struct pd_seal *seal, enum pd_seal_side side, const struct pd_message *message, int limit_ms);
