/* What hosts and devices have cost a launch, and so which of them the next start takes. Pure: it looks at nothing itself.
 *
 *   a host  that does not answer is left out until it does. One where ranks died twice since the last progress is left out
 *           for a second, then for two, four, ... and at most five minutes (ckpt/base/backoff.h), while others are enough
 *           One that will be taken away is left out for five minutes, or until it is gone and back
 *   a device  that was lost is left out for ten minutes, the next time for twenty, ... Where its host has no other for the rank
 *           it has a place less meanwhile, unless no host had one then
 *   ranks   fill hosts in the order of the list, each up to its places: its slots, less those */
#pragma once

#include "trainer/launch/hosts.h"

#define PD_LAUNCH_NO_HOST UINT32_MAX
#define PD_LAUNCH_DEVICES_MAX 64u

struct pd_launch_host {
    char name[PD_LAUNCH_HOST_BYTES];
    char address[PD_LAUNCH_ADDRESS_BYTES];
    uint32_t slots;                          /* of the list; 0: it is not in the list any more */
    uint32_t ranks;                          /* of this start */
    char same_as[PD_LAUNCH_HOST_BYTES];      /* and slots 0: another name of that one */
    char cut_off_from[PD_LAUNCH_HOST_BYTES]; /* left out until a look finds that they reach one another; "": from none */
    bool answers, lacks_program, lacks_address;
    bool has_sign;         /* a rank of it has said how it ended: it is there, and need not answer */
    bool is_taken;         /* and out_until_ns set: it will be taken away, and is back once it has not answered */
    bool was_usable;       /* at the last take */
    uint32_t failures;     /* starts that ended because of it, since the last progress */
    uint32_t suspicions;   /* times that a rank of it computed wrongly */
    uint64_t out_until_ns; /* left out until then; 0: not */
};

struct pd_launch_account {
    struct pd_launch_host
        *hosts; /* (count) in the order of the list, and behind those the ones that are not in it any more */
    uint32_t count;
    struct pd_launch_device {
        char identity[64];
        char host[PD_LAUNCH_HOST_BYTES]; /* that has a place less; "": none has */
        uint32_t losses;
        uint64_t out_until_ns;
    } devices[PD_LAUNCH_DEVICES_MAX]; /* that were lost; past the last one the oldest gives way */
    uint32_t device_count;
};

/* A rank of the last take has said how it ended, so its host is there: until the next update. */
void pd_launch_account_sign(struct pd_launch_account *account, uint32_t rank);
/* Whether nobody need be waited for: all that are silent so far have given a sign, or had no rank and did not answer before. */
bool pd_launch_account_knows(const struct pd_launch_account *account, const struct pd_launch_host_seen *seen,
                             uint32_t count);
/* What a look has found; what is known of hosts that are in the list still, or again, stays. */
PD_MUST_USE pd_status pd_launch_account_update(struct pd_launch_account *account, const struct pd_launch_host_seen *seen,
                                               uint32_t count, struct pd_error *err);
/* Ranks that may run now. */
uint32_t pd_launch_account_slots(const struct pd_launch_account *account, uint64_t now_ns);
/* Gives `ranks` to hosts: "a:4,b:2" for the starter, malloc'ed. At most pd_launch_account_slots are asked for. */
PD_MUST_USE pd_status pd_launch_account_take(struct pd_launch_account *account, uint64_t now_ns, uint32_t ranks,
                                             char **ret_text, struct pd_error *err);
/* Hosts of the list that could have no rank at the last take: "b, c". */
void pd_launch_account_away(const struct pd_launch_account *account, char *ret_names, size_t bytes);
/* Whether one of those, or one that was not in the list, can have ranks now. */
bool pd_launch_account_has_other(const struct pd_launch_account *account, uint64_t now_ns);
/* The host of a rank of the last take, or PD_LAUNCH_NO_HOST. */
uint32_t pd_launch_account_host_of(const struct pd_launch_account *account, uint32_t rank);
/* Hosts of the last take that do not answer any more: each is charged, and written down as "b (2 ranks)". Returns how many. */
uint32_t pd_launch_account_lost(struct pd_launch_account *account, char *ret_names, size_t bytes);
/* Hosts of the last take that are cut off from others, written down as "c and b do not reach one another". Returns how many. */
uint32_t pd_launch_account_cut_off(const struct pd_launch_account *account, char *ret_text, size_t bytes);
bool pd_launch_account_has_cut_off(const struct pd_launch_account *account); /* links are to be asked for again */
/* Ranks of this host died, and it answers. True: it is left out now, since the others have `enough` slots. */
bool pd_launch_account_charge(struct pd_launch_account *account, uint32_t host, uint64_t now_ns, uint32_t enough);
/* It will be taken away. */
void pd_launch_account_taken(struct pd_launch_account *account, uint32_t host, uint64_t now_ns);
/* A rank of it computed wrongly and not on a GPU: left out for as long as a GPU is. True: the others have `enough` slots. */
bool pd_launch_account_suspect(struct pd_launch_account *account, const char *name, uint64_t now_ns, uint32_t enough);
/* A rank lost this GPU, for which `host` has no other (PD_LAUNCH_NO_HOST: it has, or hosts are not known). Several ranks of one
 * GPU may say so at once. */
void pd_launch_account_lost_device(struct pd_launch_account *account, const char *identity, uint32_t host, uint64_t now_ns);
/* Those that are left out now, with commas between them; malloc'ed, "" for none; NULL: no memory. */
char *pd_launch_account_devices_out(const struct pd_launch_account *account, uint64_t now_ns);
/* A newer checkpoint is there. */
void pd_launch_account_progress(struct pd_launch_account *account);
/* Why hosts of the list are left out: "b does not answer, c lost ranks 3 times"; "" where none is. */
void pd_launch_account_describe_out(const struct pd_launch_account *account, uint64_t now_ns, char *ret_text, size_t bytes);
void pd_launch_account_deinit(struct pd_launch_account *account);
