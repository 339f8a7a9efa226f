#include "trainer/launch/placement.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/log.h"
#include "ckpt/base/words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MODULE "launch"
#define LOOK_NS UINT64_C(5000000000)   /* between two looks, while ranks run or wait for hosts */
#define PATIENCE 4u                    /* times the slowest host's answer */
#define RETURN_NS UINT64_C(1000000000) /* for hosts that did not answer before */
#define OUT_BYTES 1024

static uint32_t least(const struct pd_launch_placement *p)
{
    return p->places->min ? p->places->min : 1;
}

static pd_status look_begin(struct pd_launch_placement *p, struct pd_error *err)
{
    const struct pd_launch_places *places = p->places;
    p->look.asks_links = p->doubts_links || pd_launch_account_has_cut_off(&p->account);
    p->doubts_links = false;
    return pd_launch_look_begin(places->hosts, places->agent, places->slots ? places->slots : 1, PATIENCE, &p->look, err);
}

/* Whether the answers suffice: ranks show which silent hosts are gone. */
static bool look_is_enough(struct pd_launch_placement *p)
{
    struct pd_launch_host_seen *seen;
    uint32_t count;
    struct pd_error ignored;
    if (pd_clock_monotonic_ns(NULL) - p->look.began_ns < RETURN_NS) return false;
    if (pd_launch_look_peek(&p->look, &seen, &count, &ignored)) return false;
    const bool is_enough = pd_launch_account_knows(&p->account, seen, count);
    free(seen);
    return is_enough;
}

static pd_status look_end(struct pd_launch_placement *p, struct pd_error *err)
{
    struct pd_launch_host_seen *seen;
    uint32_t count;
    PD_TRY(pd_launch_look_end(&p->look, &seen, &count, err));
    const pd_status st = pd_launch_account_update(&p->account, seen, count, err);
    free(seen);
    return st;
}

static bool is_asked_to_leave(const struct pd_launch_requests *requests)
{
    return requests->wants_leave || requests->wants_abort;
}

static pd_status look_await(struct pd_launch_placement *p, struct pd_launch_requests *requests, bool is_of_loss,
                            struct pd_error *err)
{
    while (!pd_launch_look_poll(&p->look, 50) && !(is_of_loss && look_is_enough(p))) {
        pd_launch_requests_poll(requests, 0);
        if (!is_asked_to_leave(requests)) continue;
        pd_launch_look_cancel(&p->look);
        PD_FAIL(err, PD_STOPPED, "asked to leave while hosts were asked");
    }
    return look_end(p, err);
}

pd_status pd_launch_placement_look(struct pd_launch_placement *p, struct pd_launch_requests *requests, struct pd_error *err)
{
    pd_launch_look_cancel(&p->look);
    p->is_look_of_loss = p->is_look_of_doubt = false;
    PD_TRY(look_begin(p, err));
    return look_await(p, requests, false, err);
}

/* A lost host is known by its silence, and by reports of other hosts' ranks. */
static pd_status look_at_loss(struct pd_launch_placement *p, const struct pd_rank_table *said,
                              struct pd_launch_requests *requests, struct pd_error *err)
{
    for (uint32_t r = 0; r < said->count; r++)
        if (said->ranks[r].has_ended) pd_launch_account_sign(&p->account, r);
    if (!p->is_look_of_loss) {
        pd_launch_look_cancel(&p->look);
        PD_TRY(look_begin(p, err));
    }
    p->is_look_of_loss = p->is_look_of_doubt = false;
    return look_await(p, requests, true, err);
}

static void log_left_out(const struct pd_launch_placement *p)
{
    char out[OUT_BYTES];
    pd_launch_account_describe_out(&p->account, pd_clock_monotonic_ns(NULL), out, sizeof out);
    if (out[0]) pd_log_warn(MODULE, "left out, and asked again at the next start: %s", out);
}

static bool has_least(const struct pd_launch_placement *p)
{
    return pd_launch_account_slots(&p->account, pd_clock_monotonic_ns(NULL)) >= least(p);
}

/* Or no host is expected any more. */
static bool has_other(const struct pd_launch_placement *p)
{
    char away[OUT_BYTES];
    pd_launch_account_away(&p->account, away, sizeof away);
    return !away[0] || pd_launch_account_has_other(&p->account, pd_clock_monotonic_ns(NULL));
}

/* Logs why, and waits until is_enough. A list that cannot be read now may be readable later. */
static pd_status wait_for_hosts(struct pd_launch_placement *p, bool (*is_enough)(const struct pd_launch_placement *),
                                const char *why, struct pd_launch_requests *requests, struct pd_error *err)
{
    struct pd_error ignored;
    char out[OUT_BYTES];
    const double seconds = p->places->wait_seconds;
    const uint64_t began = pd_clock_monotonic_ns(NULL);
    pd_log_warn(MODULE, "%s: waiting for hosts, up to %g s (launch.wait_seconds)", why, seconds);
    for (uint64_t now = began, looked = 0; !is_enough(p); now = pd_clock_monotonic_ns(NULL)) {
        if ((double)(now - began) > seconds * 1e9) {
            pd_launch_account_describe_out(&p->account, now, out, sizeof out);
            PD_FAIL(err, PD_PEER_LOST, "%.600s, and no host came back in %g s (launch.wait_seconds): %.250s", why, seconds,
                    out[0] ? out : "the list has no more");
        }
        pd_launch_requests_poll(requests, 100);
        if (is_asked_to_leave(requests)) PD_FAIL(err, PD_STOPPED, "asked to leave while waiting for hosts");
        if (looked && now - looked < LOOK_NS) continue;
        if (pd_launch_placement_look(p, requests, &ignored) != PD_STOPPED) looked = now;
    }
    return PD_OK;
}

pd_status pd_launch_placement_await(struct pd_launch_placement *p, const char *why, struct pd_launch_requests *requests,
                                    struct pd_error *err)
{
    return wait_for_hosts(p, has_other, why, requests, err);
}

pd_status pd_launch_placement_ranks(struct pd_launch_placement *p, uint32_t wanted, struct pd_launch_requests *requests,
                                    uint32_t *ret_ranks, struct pd_error *err)
{
    char why[96];
    uint32_t slots = pd_launch_account_slots(&p->account, pd_clock_monotonic_ns(NULL));
    log_left_out(p);
    snprintf(why, sizeof why, "%s can run and elastic.min is %u", pd_counted(slots, "rank").text, least(p));
    if (!has_least(p)) PD_TRY(wait_for_hosts(p, has_least, why, requests, err));
    slots = pd_launch_account_slots(&p->account, pd_clock_monotonic_ns(NULL));
    *ret_ranks = p->offered = wanted && wanted < slots ? wanted : slots;
    return PD_OK;
}

/* A host that answered at the last start may be gone now. */
static pd_status reach_set(struct pd_launch_placement *p, struct pd_error *err)
{
    pd_status st = PD_OK;
    struct pd_launch_reach before = p->reach;
    p->reach = (struct pd_launch_reach){.hosts = NULL};
    for (uint32_t i = 0; i < p->account.count && !st; i++) {
        const struct pd_launch_host *h = &p->account.hosts[i];
        if (h->ranks) st = pd_launch_reach_add(&p->reach, h->name, h->address, PD_LAUNCH_REACH_PORT, err);
    }
    for (uint32_t i = 0; i < p->reach.count; i++)
        for (uint32_t k = 0; k < before.count; k++)
            if (!strcmp(p->reach.hosts[i].name, before.hosts[k].name))
                p->reach.hosts[i].has_answered = before.hosts[k].has_answered;
    pd_launch_reach_deinit(&before);
    return st;
}

pd_status pd_launch_placement_take(struct pd_launch_placement *p, uint32_t ranks, struct pd_error *err)
{
    char *text = NULL;
    if (!pd_launch_placement_has_list(p)) return PD_OK;
    PD_TRY(pd_launch_account_take(&p->account, pd_clock_monotonic_ns(NULL), ranks, &text, err));
    free(p->hosts);
    p->hosts = text;
    pd_launch_account_away(&p->account, p->away, sizeof p->away);
    return reach_set(p, err);
}

void pd_launch_placement_lose(struct pd_launch_placement *p)
{
    struct pd_error ignored; /* logged after the end */
    if (!pd_launch_placement_has_list(p) || p->is_look_of_loss) return;
    pd_launch_look_cancel(&p->look);
    p->is_look_of_loss = look_begin(p, &ignored) == PD_OK;
}

/* Asks hosts from the first doubt on, while probes continue. If the doubt is gone, drops the question. */
static bool is_in_doubt(struct pd_launch_placement *p)
{
    bool is_any = false;
    for (uint32_t i = 0; i < p->reach.count; i++)
        is_any |= pd_launch_reach_is_doubtful(&p->reach.hosts[i]);
    if (is_any && !p->is_look_of_loss) {
        pd_launch_placement_lose(p);
        p->is_look_of_doubt = p->is_look_of_loss;
    } else if (!is_any && p->is_look_of_doubt) {
        pd_launch_look_cancel(&p->look);
        p->is_look_of_loss = p->is_look_of_doubt = false;
    }
    return is_any;
}

/* A host that answers the agent but not probes has a new packet filter. */
static bool is_silent(struct pd_launch_reach_host *h, const struct pd_launch_host_seen *seen, uint32_t count)
{
    if (!h->is_silent || h->is_ignored) return false;
    for (uint32_t i = 0; i < count; i++)
        if (!strcmp(seen[i].name, h->name)) h->is_ignored = seen[i].answers;
    return !h->is_ignored;
}

bool pd_launch_placement_has_silent(struct pd_launch_placement *p, char *ret_names, size_t bytes)
{
    uint32_t count;
    struct pd_launch_host_seen *seen;
    struct pd_error ignored;
    size_t used = 0;
    pd_launch_reach_look(&p->reach, pd_clock_monotonic_ns(NULL));
    if (!is_in_doubt(p) || !pd_launch_look_poll(&p->look, 0)) return false;
    if (pd_launch_look_peek(&p->look, &seen, &count, &ignored)) return false;
    for (uint32_t i = 0; i < p->reach.count && used < bytes; i++)
        if (is_silent(&p->reach.hosts[i], seen, count))
            used += (size_t)snprintf(ret_names + used, bytes - used, "%s%s", used ? ", " : "", p->reach.hosts[i].name);
    free(seen);
    return used > 0;
}

/* Ranks' reports on each other blame the messengers: their starter ended those left behind. */
static void blame(struct pd_launch_verdict *verdict, const char *names)
{
    if (verdict->status == PD_PEER_LOST)
        snprintf(verdict->message, sizeof verdict->message, "lost %s %.900s: no answer",
                 strchr(names, ',') ? "hosts" : "host", names);
}

/* All hosts answer, and their ranks have not met. */
static bool find_cut_off(struct pd_launch_placement *p, struct pd_launch_requests *requests,
                         struct pd_launch_verdict *verdict)
{
    char text[OUT_BYTES];
    struct pd_error ignored;
    if (verdict->status != PD_PEER_LOST || !verdict->may_be_network) return false;
    p->doubts_links = true;
    if (pd_launch_placement_look(p, requests, &ignored)) return false;
    if (!pd_launch_account_cut_off(&p->account, text, sizeof text)) return false;
    snprintf(verdict->message, sizeof verdict->message, "%.900s", text);
    return true;
}

bool pd_launch_placement_charge(struct pd_launch_placement *p, const struct pd_rank_table *said,
                                struct pd_launch_requests *requests, struct pd_launch_verdict *verdict)
{
    char names[OUT_BYTES];
    struct pd_error why;
    if (!pd_launch_placement_has_list(p) || verdict->status == PD_OK || is_asked_to_leave(requests)) return false;
    if (look_at_loss(p, said, requests, &why)) {
        pd_log_warn(MODULE, "using the hosts of the last start: %s", why.message);
        return false;
    }
    if (pd_launch_account_lost(&p->account, names, sizeof names)) {
        blame(verdict, names);
        return true;
    }
    if (find_cut_off(p, requests, verdict)) return true;
    const uint32_t host = verdict->lost ? pd_launch_account_host_of(&p->account, verdict->lost_ranks[0]) : PD_LAUNCH_NO_HOST;
    if (host == PD_LAUNCH_NO_HOST || !pd_launch_account_charge(&p->account, host, pd_clock_monotonic_ns(NULL), least(p)))
        return false;
    const size_t used = strlen(verdict->message);
    snprintf(verdict->message + used, sizeof verdict->message - used, "; again on host %s", p->account.hosts[host].name);
    return true;
}

uint32_t pd_launch_placement_lose_devices(struct pd_launch_placement *p, const struct pd_rank_table *said)
{
    uint32_t without = 0;
    const uint64_t now = pd_clock_monotonic_ns(NULL);
    for (uint32_t r = 0; r < said->count; r++) {
        const struct pd_lost_gpu *lost = said->ranks[r].lost;
        if (!lost) continue;
        const uint32_t host = lost->is_spare ? PD_LAUNCH_NO_HOST : pd_launch_account_host_of(&p->account, r);
        pd_launch_account_lost_device(&p->account, lost->identity, host, now);
        pd_log_warn(MODULE, "GPU %s, of rank %u, is left out for now", lost->identity, r);
        without += !lost->is_spare && host == PD_LAUNCH_NO_HOST;
    }
    free(p->left_out);
    p->left_out = pd_launch_account_devices_out(&p->account, now);
    return without;
}

void pd_launch_placement_suspect(struct pd_launch_placement *p, const struct pd_suspect *s, const char *host)
{
    if (!s->gpu[0] && pd_launch_account_suspect(&p->account, host, pd_clock_monotonic_ns(NULL), least(p)))
        pd_log_warn(MODULE, "host %s, of rank %u, is left out of the next start", host, s->rank);
    if (!s->gpu[0] || !s->is_spare) return;
    pd_launch_account_lost_device(&p->account, s->gpu, PD_LAUNCH_NO_HOST, pd_clock_monotonic_ns(NULL));
    pd_log_warn(MODULE, "GPU %s, of rank %u, is left out of the next start", s->gpu, s->rank);
}

bool pd_launch_placement_taken(struct pd_launch_placement *p, const struct pd_rank_table *said)
{
    char names[OUT_BYTES];
    size_t used = 0;
    bool is_own = false;
    const uint64_t now = pd_clock_monotonic_ns(NULL);
    for (uint32_t r = 0; pd_launch_placement_has_list(p) && r < said->count; r++) {
        const uint32_t host = said->ranks[r].is_taken ? pd_launch_account_host_of(&p->account, r) : PD_LAUNCH_NO_HOST;
        if (host == PD_LAUNCH_NO_HOST || used >= sizeof names) continue;
        const char *name = p->account.hosts[host].name;
        pd_launch_account_taken(&p->account, host, now);
        is_own |= pd_launch_host_is_this(name);
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", name);
    }
    if (!used || is_own || !has_least(p)) return false;
    pd_log_warn(MODULE, "%s will be taken away (preempt.notice): the others continue from the saved step", names);
    return true;
}

bool pd_launch_placement_has_grown(struct pd_launch_placement *p, uint32_t wanted)
{
    struct pd_error ignored; /* logged at the next start */
    const uint64_t now = pd_clock_monotonic_ns(NULL);
    if (!p->places->grows_now || !pd_launch_placement_has_list(p) || p->is_look_of_loss) return false;
    if (!p->look.process) {
        if (now - p->looked_ns < LOOK_NS) return false;
        p->looked_ns = now;
        return look_begin(p, &ignored) && false;
    }
    if (!pd_launch_look_poll(&p->look, 0) || look_end(p, &ignored)) return false;
    const uint32_t slots = pd_launch_account_slots(&p->account, now), most = wanted && wanted < slots ? wanted : slots;
    return most > p->offered;
}

void pd_launch_placement_deinit(struct pd_launch_placement *p)
{
    pd_launch_look_cancel(&p->look);
    pd_launch_reach_deinit(&p->reach);
    pd_launch_account_deinit(&p->account);
    free(p->hosts);
    free(p->left_out);
    p->hosts = p->left_out = NULL;
}
