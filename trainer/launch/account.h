/* Keeps account of failures of hosts and devices, and decides which of them the next start uses. Pure: it queries nothing
 * itself.
 *
 *   a host  is left out while it does not answer. If ranks died there twice since the last progress, it is left out for a
 *           second, then two, four, ... at most five minutes (ckpt/base/backoff.h), while the others are enough. A host that
 *           will be taken away is left out for five minutes, or until it is gone and back
 *   a device  that was lost is left out for ten minutes, the next time for twenty, ... If its host has no other for the
 *             rank, the host has one place less meanwhile, unless no host then had one
 *   ranks   fill hosts in list order, each up to its places: its slots, minus those */
#pragma once

#include "trainer/launch/hosts.h"

#define PD_LAUNCH_NO_HOST UINT32_MAX
#define PD_LAUNCH_DEVICES_MAX 64u

struct pd_launch_host {
    char name[PD_LAUNCH_HOST_BYTES];
    char address[PD_LAUNCH_ADDRESS_BYTES];
    uint32_t slots;                          /* from the list; 0: no longer in the list */
    uint32_t ranks;                          /* in this start */
    char same_as[PD_LAUNCH_HOST_BYTES];      /* with slots 0: another name of that host */
    char cut_off_from[PD_LAUNCH_HOST_BYTES]; /* left out until the two hosts can reach each other; "": not cut off */
    bool answers, lacks_program, lacks_address;
    bool has_sign;         /* one of its ranks reported its end: the host is up and need not answer */
    bool is_taken;         /* and out_until_ns set: it will be taken away; it is back once it has stopped answering */
    bool was_usable;       /* at the last take */
    uint32_t failures;     /* starts that it made fail, since the last progress */
    uint32_t suspicions;   /* times one of its ranks computed wrongly */
    uint64_t out_until_ns; /* left out until then; 0: not left out */
};

struct pd_launch_account {
    struct pd_launch_host *hosts; /* (count) in list order, followed by hosts no longer in the list */
    uint32_t count;
    struct pd_launch_device {
        char identity[64];
        char host[PD_LAUNCH_HOST_BYTES]; /* that has one place less; "": none */
        uint32_t losses;
        uint64_t out_until_ns;
    } devices[PD_LAUNCH_DEVICES_MAX]; /* lost devices; if full, the oldest is dropped */
    uint32_t device_count;
};

/* Records that a rank of the last take reported its end, so its host is up. Valid until the next update. */
void pd_launch_account_sign(struct pd_launch_account *account, uint32_t rank);
/* Whether the look may stop: every silent host has given a sign, or had no rank and did not answer before. */
bool pd_launch_account_knows(const struct pd_launch_account *account, const struct pd_launch_host_seen *seen,
                             uint32_t count);
/* Enters the results of a look. Keeps what is known of hosts that are still, or again, in the list. */
PD_MUST_USE pd_status pd_launch_account_update(struct pd_launch_account *account, const struct pd_launch_host_seen *seen,
                                               uint32_t count, struct pd_error *err);
/* Number of ranks that can run now. */
uint32_t pd_launch_account_slots(const struct pd_launch_account *account, uint64_t now_ns);
/* Assigns `ranks` to hosts: "a:4,b:2" for the starter, malloc'ed. At most pd_launch_account_slots. */
PD_MUST_USE pd_status pd_launch_account_take(struct pd_launch_account *account, uint64_t now_ns, uint32_t ranks,
                                             char **ret_text, struct pd_error *err);
/* Listed hosts that could not get a rank in the last take: "b, c". */
void pd_launch_account_away(const struct pd_launch_account *account, char *ret_names, size_t bytes);
/* Whether one of those, or a host new in the list, can have ranks now. */
bool pd_launch_account_has_other(const struct pd_launch_account *account, uint64_t now_ns);
/* The host of a rank of the last take, or PD_LAUNCH_NO_HOST. */
uint32_t pd_launch_account_host_of(const struct pd_launch_account *account, uint32_t rank);
/* Charges hosts of the last take that no longer answer, and writes them as "b (2 ranks)". Returns their number. */
uint32_t pd_launch_account_lost(struct pd_launch_account *account, char *ret_names, size_t bytes);
/* Writes hosts of the last take that are cut off from others: "c and b do not reach one another". Returns their number. */
uint32_t pd_launch_account_cut_off(const struct pd_launch_account *account, char *ret_text, size_t bytes);
bool pd_launch_account_has_cut_off(const struct pd_launch_account *account); /* links must be tested again */
/* Ranks of this host died, but it answers. Returns true if it is now left out, because the others have `enough` slots. */
bool pd_launch_account_charge(struct pd_launch_account *account, uint32_t host, uint64_t now_ns, uint32_t enough);
/* The host will be taken away. */
void pd_launch_account_taken(struct pd_launch_account *account, uint32_t host, uint64_t now_ns);
/* One of its ranks computed wrongly, not on a GPU: leaves it out as long as a GPU. True: the others have `enough` slots. */
bool pd_launch_account_suspect(struct pd_launch_account *account, const char *name, uint64_t now_ns, uint32_t enough);
/* A rank lost this GPU, and `host` has no other for it (PD_LAUNCH_NO_HOST: it has, or hosts are unknown). Several ranks of
 * one GPU may report it at once. */
void pd_launch_account_lost_device(struct pd_launch_account *account, const char *identity, uint32_t host, uint64_t now_ns);
/* GPUs now left out, separated by commas; malloc'ed, "" for none; NULL: no memory. */
char *pd_launch_account_devices_out(const struct pd_launch_account *account, uint64_t now_ns);
/* Call when there is a newer checkpoint. */
void pd_launch_account_progress(struct pd_launch_account *account);
/* Why listed hosts are left out: "b does not answer, c lost ranks 3 times"; "" for none. */
void pd_launch_account_describe_out(const struct pd_launch_account *account, uint64_t now_ns, char *ret_text, size_t bytes);
void pd_launch_account_deinit(struct pd_launch_account *account);
