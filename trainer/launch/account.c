#include "trainer/launch/account.h"

#include "ckpt/base/backoff.h"
#include "ckpt/base/words.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICE_OUT_NS UINT64_C(600000000000)
#define TAKEN_OUT_NS UINT64_C(300000000000)

static struct pd_launch_host *account_find(struct pd_launch_host *hosts, uint32_t count, const char *name)
{
    for (uint32_t i = 0; i < count; i++)
        if (!strcmp(hosts[i].name, name)) return &hosts[i];
    return NULL;
}

void pd_launch_account_sign(struct pd_launch_account *a, uint32_t rank)
{
    const uint32_t host = pd_launch_account_host_of(a, rank);
    if (host != PD_LAUNCH_NO_HOST) a->hosts[host].has_sign = true;
}

bool pd_launch_account_knows(const struct pd_launch_account *a, const struct pd_launch_host_seen *seen, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct pd_launch_host *h = seen[i].is_silent ? account_find(a->hosts, a->count, seen[i].name) : NULL;
        if (seen[i].is_silent && (!h || (!h->has_sign && (h->ranks || h->answers)))) return false;
    }
    return true;
}

pd_status pd_launch_account_update(struct pd_launch_account *a, const struct pd_launch_host_seen *seen, uint32_t count,
                                   struct pd_error *err)
{
    uint32_t made = 0;
    struct pd_launch_host *hosts = calloc((size_t)a->count + count + 1, sizeof *hosts);
    if (!hosts) PD_FAIL(err, PD_NO_MEMORY, "an account of hosts");
    for (uint32_t i = 0; i < count; i++) {
        const struct pd_launch_host *known = account_find(a->hosts, a->count, seen[i].name);
        struct pd_launch_host *h = &hosts[made++];
        if (known)
            *h = *known;
        else
            snprintf(h->name, sizeof h->name, "%s", seen[i].name);
        h->lacks_program = seen[i].lacks_program;
        h->lacks_address = seen[i].lacks_address;
        if (seen[i].knows_links) snprintf(h->cut_off_from, sizeof h->cut_off_from, "%s", seen[i].cut_off_from);
        snprintf(h->same_as, sizeof h->same_as, "%s", seen[i].same_as);
        snprintf(h->address, sizeof h->address, "%s", seen[i].address);
        h->slots = seen[i].slots;
        h->answers = seen[i].answers || (seen[i].is_silent && h->has_sign);
        h->has_sign = false;
        if (!h->answers && h->is_taken) h->out_until_ns = h->is_taken = 0;
    }
    for (uint32_t i = 0; i < a->count; i++) {
        if (account_find(hosts, made, a->hosts[i].name)) continue;
        hosts[made] = a->hosts[i];
        hosts[made].same_as[0] = '\0';
        hosts[made++].slots = 0;
    }
    free(a->hosts);
    a->hosts = hosts;
    a->count = made;
    return PD_OK;
}

static bool is_usable(const struct pd_launch_host *h, uint64_t now_ns)
{
    return h->slots && h->answers && !h->cut_off_from[0] && h->out_until_ns <= now_ns;
}

/* Slots, less one for each lost device without a spare. */
static uint32_t left_of(const struct pd_launch_account *a, const struct pd_launch_host *h, uint64_t now_ns)
{
    uint32_t lost = 0;
    for (uint32_t i = 0; i < a->device_count && i < PD_LAUNCH_DEVICES_MAX; i++)
        lost += a->devices[i].out_until_ns > now_ns && !strcmp(a->devices[i].host, h->name);
    if (!is_usable(h, now_ns)) return 0;
    return lost < h->slots ? h->slots - lost : 0;
}

/* If no host of the list has a device left, lost devices are tried again. */
static uint32_t places_of(const struct pd_launch_account *a, const struct pd_launch_host *h, uint64_t now_ns)
{
    bool has_others = false;
    for (uint32_t i = 0; i < a->count; i++)
        has_others |= left_of(a, &a->hosts[i], now_ns) || (a->hosts[i].slots && !a->hosts[i].answers);
    if (has_others) return left_of(a, h, now_ns);
    return is_usable(h, now_ns) ? h->slots : 0;
}

uint32_t pd_launch_account_slots(const struct pd_launch_account *a, uint64_t now_ns)
{
    uint32_t slots = 0;
    for (uint32_t i = 0; i < a->count; i++)
        slots += places_of(a, &a->hosts[i], now_ns);
    return slots;
}

pd_status pd_launch_account_take(struct pd_launch_account *a, uint64_t now_ns, uint32_t ranks, char **ret_text,
                                 struct pd_error *err)
{
    size_t bytes;
    char *text = NULL;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) PD_FAIL(err, PD_NO_MEMORY, "a list of hosts");
    for (uint32_t i = 0, left = ranks; i < a->count; i++) {
        struct pd_launch_host *h = &a->hosts[i];
        const uint32_t places = places_of(a, h, now_ns);
        h->was_usable = places > 0;
        h->ranks = left < places ? left : places;
        if (h->ranks) fprintf(out, "%s%s:%u", left == ranks ? "" : ",", h->name, h->ranks);
        left -= h->ranks;
    }
    if (fclose(out)) {
        free(text);
        PD_FAIL(err, PD_NO_MEMORY, "a list of hosts");
    }
    *ret_text = text;
    return PD_OK;
}

uint32_t pd_launch_account_host_of(const struct pd_launch_account *a, uint32_t rank)
{
    for (uint32_t i = 0; i < a->count; i++) {
        if (rank < a->hosts[i].ranks) return i;
        rank -= a->hosts[i].ranks;
    }
    return PD_LAUNCH_NO_HOST;
}

static void account_append(char *text, size_t bytes, const char *more)
{
    const size_t used = strlen(text);
    snprintf(text + used, bytes - used, "%s%s", used ? ", " : "", more);
}

void pd_launch_account_away(const struct pd_launch_account *a, char *ret_names, size_t bytes)
{
    ret_names[0] = '\0';
    for (uint32_t i = 0; i < a->count; i++)
        if (a->hosts[i].slots && !a->hosts[i].was_usable) account_append(ret_names, bytes, a->hosts[i].name);
}

bool pd_launch_account_has_other(const struct pd_launch_account *a, uint64_t now_ns)
{
    for (uint32_t i = 0; i < a->count; i++)
        if (!a->hosts[i].was_usable && places_of(a, &a->hosts[i], now_ns)) return true;
    return false;
}

uint32_t pd_launch_account_lost(struct pd_launch_account *a, char *ret_names, size_t bytes)
{
    uint32_t lost = 0;
    ret_names[0] = '\0';
    for (uint32_t i = 0; i < a->count; i++) {
        char one[PD_LAUNCH_HOST_BYTES + 64];
        struct pd_launch_host *h = &a->hosts[i];
        if (!h->ranks || h->answers) continue;
        lost++;
        h->failures++;
        snprintf(one, sizeof one, "%s (%s)", h->name, pd_counted(h->ranks, "rank").text);
        account_append(ret_names, bytes, one);
    }
    return lost;
}

uint32_t pd_launch_account_cut_off(const struct pd_launch_account *a, char *ret_text, size_t bytes)
{
    uint32_t count = 0;
    ret_text[0] = '\0';
    for (uint32_t i = 0; i < a->count; i++) {
        char one[2 * PD_LAUNCH_HOST_BYTES + 40];
        const struct pd_launch_host *h = &a->hosts[i];
        if (!h->ranks || !h->cut_off_from[0]) continue;
        snprintf(one, sizeof one, "%s and %s cannot reach each other", h->name, h->cut_off_from);
        account_append(ret_text, bytes, one);
        count++;
    }
    return count;
}

bool pd_launch_account_has_cut_off(const struct pd_launch_account *a)
{
    bool has_any = false;
    for (uint32_t i = 0; i < a->count; i++)
        has_any |= a->hosts[i].slots && a->hosts[i].cut_off_from[0];
    return has_any;
}

bool pd_launch_account_charge(struct pd_launch_account *a, uint32_t host, uint64_t now_ns, uint32_t enough)
{
    struct pd_launch_host *h = &a->hosts[host];
    const uint32_t others = pd_launch_account_slots(a, now_ns) - places_of(a, h, now_ns);
    h->failures++;
    if (h->failures < 2 || others < enough) return false;
    h->out_until_ns = now_ns + pd_backoff_ns(h->failures - 1);
    return true;
}

void pd_launch_account_taken(struct pd_launch_account *a, uint32_t host, uint64_t now_ns)
{
    a->hosts[host].is_taken = true;
    a->hosts[host].out_until_ns = now_ns + TAKEN_OUT_NS;
}

static uint64_t suspect_ns(uint32_t times)
{
    return DEVICE_OUT_NS << (times < 8 ? times : 8);
}

bool pd_launch_account_suspect(struct pd_launch_account *a, const char *name, uint64_t now_ns, uint32_t enough)
{
    struct pd_launch_host *h = account_find(a->hosts, a->count, name);
    const uint32_t slots = pd_launch_account_slots(a, now_ns);
    if (!h || slots - places_of(a, h, now_ns) < enough) return false;
    h->out_until_ns = now_ns + suspect_ns(h->suspicions++);
    return true;
}

void pd_launch_account_lost_device(struct pd_launch_account *a, const char *identity, uint32_t host, uint64_t now_ns)
{
    struct pd_launch_device *d = NULL;
    for (uint32_t i = 0; i < a->device_count && i < PD_LAUNCH_DEVICES_MAX; i++)
        if (!strcmp(a->devices[i].identity, identity)) d = &a->devices[i];
    if (!d) {
        d = &a->devices[a->device_count++ % PD_LAUNCH_DEVICES_MAX];
        *d = (struct pd_launch_device){.losses = 0};
        snprintf(d->identity, sizeof d->identity, "%s", identity);
    }
    if (host != PD_LAUNCH_NO_HOST) snprintf(d->host, sizeof d->host, "%s", a->hosts[host].name);
    if (d->out_until_ns > now_ns) return;
    d->out_until_ns = now_ns + suspect_ns(d->losses++);
}

char *pd_launch_account_devices_out(const struct pd_launch_account *a, uint64_t now_ns)
{
    size_t bytes;
    char *text = NULL;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return NULL;
    for (uint32_t i = 0; i < a->device_count && i < PD_LAUNCH_DEVICES_MAX; i++)
        if (a->devices[i].out_until_ns > now_ns) fprintf(out, "%s%s", ftell(out) ? "," : "", a->devices[i].identity);
    if (!fclose(out)) return text;
    free(text);
    return NULL;
}

void pd_launch_account_progress(struct pd_launch_account *a)
{
    for (uint32_t i = 0; i < a->count; i++)
        a->hosts[i].failures = 0;
}

void pd_launch_account_describe_out(const struct pd_launch_account *a, uint64_t now_ns, char *ret_text, size_t bytes)
{
    ret_text[0] = '\0';
    for (uint32_t i = 0; i < a->count; i++) {
        char one[2 * PD_LAUNCH_HOST_BYTES + 80];
        const struct pd_launch_host *h = &a->hosts[i];
        if ((!h->slots && !h->same_as[0]) || places_of(a, h, now_ns)) continue;
        if (h->same_as[0])
            snprintf(one, sizeof one, "%s is the same machine as %s (for more ranks there: %s:N)", h->name, h->same_as,
                     h->same_as);
        else if (h->lacks_program)
            snprintf(one, sizeof one, "%s has not this program at the same path", h->name);
        else if (!h->answers)
            snprintf(one, sizeof one, "%s does not answer%s", h->name,
                     h->lacks_address ? ", and its name has no address here" : "");
        else if (h->cut_off_from[0])
            snprintf(one, sizeof one, "%s and %s cannot reach each other", h->name, h->cut_off_from);
        else if (is_usable(h, now_ns))
            snprintf(one, sizeof one, "%s lost its GPUs", h->name);
        else if (h->is_taken)
            snprintf(one, sizeof one, "%s will be taken away (preempt.notice)", h->name);
        else if (h->suspicions)
            snprintf(one, sizeof one, "%s computed wrongly", h->name);
        else
            snprintf(one, sizeof one, "%s lost ranks %u times without progress", h->name, h->failures);
        account_append(ret_text, bytes, one);
    }
}

void pd_launch_account_deinit(struct pd_launch_account *a)
{
    free(a->hosts);
    *a = (struct pd_launch_account){.hosts = NULL};
}
