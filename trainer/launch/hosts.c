#include "trainer/launch/hosts.h"

#include "ckpt/base/clock.h"
#include "ckpt/base/grow.h"
#include "ckpt/base/parse.h"
#include "ckpt/base/thread.h"
#include "trainer/launch/reach.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <poll.h>
#include <search.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define TEXT_BYTES_MAX (1u << 20)
#define AGENT_WORDS_MAX 32u
#define ANSWER_MS_MIN 3000 /* a busy host may take that long to start a process */
#define ANSWER_MS_MAX 10000
#define LOOK_MS_MAX 60000
#define LACKS_PROGRAM 97 /* exit code of the question */
#define MACHINE "perdure-host "
#define BOOT_ID "/proc/sys/kernel/random/boot_id"
#define SAID_BYTES 65536u
#define QUESTION_BYTES 65536u
#define LINKS_MS 3000
#define RESOLVERS_MAX 256u
#define FAILED UINT32_MAX

/* ---- parsing the source ---- */

/* A DNS name or an address; ssh also takes user@host. A leading "-" would be an option of ssh. */
static bool is_host_name(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-:@%";
    return *name && *name != '-' && strspn(name, letters) == strlen(name);
}

/* name, name:4, name slots=4 */
static bool line_parse(char *line, uint32_t slots, struct pd_launch_host_seen *ret)
{
    char *rest = line, *end = NULL;
    uint64_t given = slots;
    line[strcspn(line, "#")] = '\0';
    char *name = strtok_r(rest, " \t\r", &rest), *word = name ? strtok_r(rest, " \t\r", &rest) : NULL;
    ret->name[0] = '\0';
    if (!name) return true;
    char *colon = strchr(name, ':');
    if (colon && !strchr(colon + 1, ':')) { /* and no address of IPv6 */
        *colon = '\0';
        if (word || !pd_parse_u64(colon + 1, &given)) return false;
    } else if (word) {
        if (strncmp(word, "slots=", 6) || !pd_parse_u64(word + 6, &given)) return false;
        end = strtok_r(rest, " \t\r", &rest);
        if (end && strncmp(end, "max", 3)) return false; /* max_slots=N of Open MPI's files */
    }
    if (!is_host_name(name) || strlen(name) >= sizeof ret->name || given > 65536) return false;
    snprintf(ret->name, sizeof ret->name, "%s", name);
    ret->slots = (uint32_t)given;
    return true;
}

/* The first host with this key, or `host` if there is none; NULL: neither. */
static struct pd_launch_host_seen *first_of(struct hsearch_data *table, char *key, struct pd_launch_host_seen *host)
{
    ENTRY *found;
    return hsearch_r((ENTRY){key, host}, host ? ENTER : FIND, &found, table) ? found->data : host;
}

static uint32_t lines_of(const char *text)
{
    uint32_t lines = 1;
    for (; *text; text++)
        lines += *text == '\n';
    return lines;
}

pd_status pd_launch_hosts_parse(const char *text, uint32_t slots, struct pd_launch_host_seen **ret_hosts,
                                uint32_t *ret_count, struct pd_error *err)
{
    uint32_t count = 0, number = 0;
    char *copy = strdup(text), *rest = copy;
    struct hsearch_data names = {0};
    struct pd_launch_host_seen *hosts = calloc(lines_of(text), sizeof *hosts), host = {.address = ""};
    pd_status st = copy && hosts && hcreate_r(2 * (size_t)lines_of(text), &names)
                       ? PD_OK
                       : pd_error_set(err, PD_NO_MEMORY, PD_WHERE, 0, "a list of hosts");
    for (char *line; !st && (line = strsep(&rest, "\n"));) {
        char shown[64];
        snprintf(shown, sizeof shown, "%.60s", line);
        number++;
        if (!line_parse(line, slots, &host))
            st = pd_error_set(err, PD_INVALID, PD_WHERE, 0, "line %u, \"%s\", must be: name, name:4 or name slots=4", number,
                              shown);
        if (st || !host.name[0] || !host.slots) continue;
        hosts[count] = host;
        struct pd_launch_host_seen *first = first_of(&names, hosts[count].name, &hosts[count]);
        if (first == &hosts[count])
            count++;
        else
            first->slots += host.slots;
    }
    hdestroy_r(&names);
    free(copy);
    if (st) {
        free(hosts);
        return st;
    }
    *ret_hosts = hosts;
    *ret_count = count;
    return PD_OK;
}

/* ---- in the process that looks ---- */

/* Writes a host's record to the pipe whenever more is known, in one atomic write. */
struct finding {
    uint32_t number; /* of the host, in order; FAILED: no host */
    union {
        struct pd_launch_host_seen host;
        char failure[512];
    };
};
_Static_assert(sizeof(struct finding) <= PIPE_BUF, "a pipe takes a finding whole");

struct question {
    const char *agent, *secret, *secret_dir; /* as in struct pd_launch_look */
    int patience, slowest_ms;                /* of the look before */
    bool asks_links;
};

static bool is_address_here(const struct addrinfo *address)
{
    const int fd = socket(address->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    const bool is_here = fd >= 0 && bind(fd, address->ai_addr, address->ai_addrlen) == 0;
    if (fd >= 0) close(fd);
    return is_here;
}

static bool is_own_name(const char *name)
{
    char own[PD_LAUNCH_HOST_BYTES] = "";
    if (gethostname(own, sizeof own - 1) == 0) {
        const size_t bytes = strcspn(name, "."), own_bytes = strcspn(own, ".");
        if (!strcmp(own, name)) return true;
        if (bytes == own_bytes && !strncmp(own, name, bytes) && (!name[bytes] || !own[bytes])) return true;
    }
    return strcmp(name, "localhost") == 0;
}

/* ret_address: unchanged for this host, or if the name has none */
static bool find_host(const char *name, char ret_address[PD_LAUNCH_ADDRESS_BYTES])
{
    struct addrinfo *found = NULL, hints = {.ai_socktype = SOCK_DGRAM};
    bool is_here = is_own_name(name);
    if (is_here || getaddrinfo(name, NULL, &hints, &found)) return is_here;
    for (const struct addrinfo *a = found; a && !is_here; a = a->ai_next)
        is_here = is_address_here(a);
    if (!is_here)
        (void)getnameinfo(found->ai_addr, found->ai_addrlen, ret_address, PD_LAUNCH_ADDRESS_BYTES, NULL, 0, NI_NUMERICHOST);
    freeaddrinfo(found);
    return is_here;
}

struct names {
    struct pd_launch_host_seen *hosts; /* (count) */
    uint32_t count;
    _Atomic uint32_t next;
};

static void *names_resolve(void *names)
{
    struct names *n = names;
    for (uint32_t i; (i = atomic_fetch_add(&n->next, 1)) < n->count;) {
        struct pd_launch_host_seen *h = &n->hosts[i];
        h->answers = find_host(h->name, h->address);
        h->lacks_address = !h->answers && !h->address[0];
    }
    return NULL;
}

/* All in parallel: without a working name server each name takes seconds. `answers` is only for this host. */
static void names_resolve_all(struct pd_launch_host_seen *hosts, uint32_t count)
{
    pthread_t threads[RESOLVERS_MAX];
    struct names names = {.hosts = hosts, .count = count};
    uint32_t started = 0;
    while (started < RESOLVERS_MAX && started + 1 < count &&
           !pd_thread_start(&threads[started], NULL, names_resolve, &names))
        started++;
    (void)names_resolve(&names);
    while (started)
        pthread_join(threads[--started], NULL);
}

bool pd_launch_host_is_this(const char *name)
{
    char ignored[PD_LAUNCH_ADDRESS_BYTES];
    return find_host(name, ignored);
}

static void fail(int results, const char *source, const char *why)
{
    struct finding f = {.number = FAILED};
    snprintf(f.failure, sizeof f.failure, "launch.hosts (%.200s): %s", source, why);
    (void)!write(results, &f, sizeof f);
    _exit(1);
}

static void tell(int results, const struct pd_launch_host_seen *hosts, uint32_t number)
{
    const struct finding f = {.number = number, .host = hosts[number]};
    (void)!write(results, &f, sizeof f);
}

/* A file that is not executable is read; everything else is a command. */
static bool is_list(const char *source)
{
    struct stat found;
    return stat(source, &found) == 0 && S_ISREG(found.st_mode) && !(found.st_mode & 0111);
}

static char *source_read(const char *source, int results)
{
    const bool is_file = is_list(source);
    char *text = calloc(1, TEXT_BYTES_MAX);
    FILE *in = !text ? NULL : is_file ? fopen(source, "re") : popen(source, "re");
    if (!in) fail(results, source, text ? strerror(errno) : "no memory");
    const size_t got = fread(text, 1, TEXT_BYTES_MAX - 1, in);
    if (ferror(in) || got == TEXT_BYTES_MAX - 1) fail(results, source, "it cannot be read, or is longer than 1 MiB");
    const int status = is_file ? fclose(in) : pclose(in);
    if (status) {
        char why[128];
        snprintf(
            why, sizeof why,
            "it is not a file, and as a command of sh it ended with %d; name a file of hosts, or a command that prints one",
            WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
        fail(results, source, why);
    }
    return text;
}

/* The question: is this program there too (only a host that answers can say), which machine is it, and do `links`
 * (addresses, each after a space) answer it? */
static void set_question(const struct question *q, const char *links, char *ret_text, size_t bytes)
{
    char self[4096];
    size_t used = 0;
    const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    self[length > 0 ? length : 0] = '\0';
    const bool has_self = self[0] && !strchr(self, '\'');
    if (q->secret && !strchr(q->secret_dir, '\''))
        used = (size_t)snprintf(ret_text, bytes,
                                "umask 077; d='%.3000s'; mkdir -p \"$d\" && cat >\"$d/secret.$$\" && "
                                "mv -f \"$d/secret.$$\" \"$d/secret\"; ",
                                q->secret_dir);
    if (has_self) used += (size_t)snprintf(ret_text + used, bytes - used, "test -x '%s' || exit %d; ", self, LACKS_PROGRAM);
    used += (size_t)snprintf(ret_text + used, bytes - used, "echo " MACHINE "$(cat " BOOT_ID ")_$(uname -n)");
    if (has_self && links[0]) snprintf(ret_text + used, bytes - used, "; '%s' reach%s", self, links);
}

/* In the form that other hosts report it; "": unknown. */
static void own_machine(char ret_machine[PD_LAUNCH_MACHINE_BYTES])
{
    char boot[64] = "", name[64] = "";
    FILE *f = fopen(BOOT_ID, "re");
    const bool is_read = f && fgets(boot, sizeof boot, f);
    if (f) (void)fclose(f);
    ret_machine[0] = '\0';
    boot[strcspn(boot, "\n")] = '\0';
    if (is_read && gethostname(name, sizeof name - 1) == 0)
        snprintf(ret_machine, PD_LAUNCH_MACHINE_BYTES, "%s_%s", boot, name);
}

struct asked {
    pid_t process;
    int output; /* -1: none */
    size_t bytes;
    char said[SAID_BYTES]; /* the last of it */
};

/* A host with much output must not wait for its reader. */
static void hear(struct asked *a)
{
    const size_t keep = SAID_BYTES / 2;
    for (ssize_t got = 1; a->output >= 0 && got > 0;) {
        if (a->bytes > keep) {
            memmove(a->said, a->said + a->bytes - keep, keep);
            a->bytes = keep;
        }
        got = read(a->output, a->said + a->bytes, SAID_BYTES - 1 - a->bytes);
        a->bytes += got > 0 ? (size_t)got : 0;
    }
    a->said[a->bytes] = '\0';
}

/* Skips output of the shell's profile. */
static void take_machine(struct asked *a, char ret_machine[PD_LAUNCH_MACHINE_BYTES])
{
    hear(a);
    const char *found = strstr(a->said, MACHINE);
    if (found) (void)sscanf(found + strlen(MACHINE), "%127s", ret_machine);
}

/* `AGENT NAME test ...`, with its words in `output`. ssh must neither ask for a password nor wait longer than we do. */
static pid_t ask(const struct question *q, const char *name, const char *links, int input, int output)
{
    static char question[QUESTION_BYTES];
    char text[1024], *rest = text, *argv[AGENT_WORDS_MAX + 8];
    uint32_t count = 0;
    const pid_t process = fork();
    if (process) return process;
    set_question(q, links, question, sizeof question);
    snprintf(text, sizeof text, "%s", q->agent);
    for (char *word; count < AGENT_WORDS_MAX && (word = strtok_r(rest, " \t", &rest));)
        argv[count++] = word;
    const char *slash = count ? strrchr(argv[0], '/') : NULL;
    if (count && !strcmp(slash ? slash + 1 : argv[0], "ssh")) {
        argv[count++] = (char *)(uintptr_t) "-oBatchMode=yes";
        argv[count++] = (char *)(uintptr_t) "-oConnectTimeout=5";
    }
    argv[count++] = (char *)(uintptr_t)name;
    argv[count++] = question;
    argv[count] = NULL;
    const int null = open("/dev/null", O_RDWR);
    for (int fd = 0; null >= 0 && fd <= 2; fd++)
        dup2(fd == 1 && output >= 0 ? output : fd == 0 && input >= 0 ? input : null, fd);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execvp(argv[0], argv);
    _exit(127);
}

/* A pipe that holds the text, for one reader; -1: none. */
static int input_of(const char *text)
{
    int input[2];
    if (!text || pipe2(input, O_CLOEXEC)) return -1;
    const bool is_written = write(input[1], text, strlen(text)) == (ssize_t)strlen(text);
    close(input[1]);
    if (is_written) return input[0];
    close(input[0]);
    return -1;
}

static pid_t begin_to_ask(const struct question *q, const char *name, const char *links, struct asked *ret)
{
    int output[2] = {-1, -1}, input = input_of(q->secret);
    if (pipe2(output, O_CLOEXEC) || fcntl(output[0], F_SETFL, O_NONBLOCK))
        output[0] = output[1] = -1; /* it waits, we do not */
    ret->process = ask(q, name, links, input, output[1]);
    if (input >= 0) close(input);
    ret->output = output[0];
    if (output[1] >= 0) close(output[1]);
    return ret->process;
}

static int limit_of(int patience, int slowest_ms)
{
    const int limit_ms = slowest_ms ? patience * slowest_ms : ANSWER_MS_MAX;
    return limit_ms < ANSWER_MS_MIN ? ANSWER_MS_MIN : limit_ms > ANSWER_MS_MAX ? ANSWER_MS_MAX : limit_ms;
}

bool pd_launch_look_waits(int patience, int slowest_ms, int last_ms, int waited_ms)
{
    return waited_ms < LOOK_MS_MAX && waited_ms - last_ms < limit_of(patience, slowest_ms);
}

/* ---- links between hosts ---- */

/* Tests links from this host, as its own report. */
static void ask_from_here(const struct pd_launch_host_seen *hosts, uint32_t count, struct asked *ret_said)
{
    const char **addresses = calloc(count, sizeof *addresses);
    bool *answers = calloc(count, sizeof *answers);
    for (uint32_t i = 0; addresses && i < count; i++)
        addresses[i] = hosts[i].address;
    if (addresses && answers) pd_launch_reach_ask(addresses, count, answers);
    for (uint32_t i = 0; addresses && answers && i < count && ret_said->bytes < SAID_BYTES - 256; i++)
        if (addresses[i][0] && !answers[i])
            ret_said->bytes += (size_t)snprintf(ret_said->said + ret_said->bytes, SAID_BYTES - ret_said->bytes,
                                                PD_LAUNCH_UNREACHED "%s\n", addresses[i]);
    free(addresses);
    free(answers);
}

struct links {
    struct pd_launch_host_seen *hosts;
    struct asked *asked; /* (count) whose output is cut into words */
    bool *takes_part;    /* (count) it answers, and has not been left out */
    bool *is_lost;       /* (count, count) probes from one to the other are lost */
    uint32_t *cut;       /* (count) others that take part and that it does not reach, or that do not reach it */
    uint32_t count;
};

/* A packet filter that drops all probes proves nothing. */
static bool answers_somebody(const struct links *l, uint32_t to)
{
    for (uint32_t i = 0; i < l->count; i++)
        if (i != to && l->hosts[i].answers && !l->is_lost[(size_t)i * l->count + to]) return true;
    return false;
}

static bool is_cut(const struct links *l, uint32_t a, uint32_t b)
{
    return a != b && (l->is_lost[(size_t)a * l->count + b] || l->is_lost[(size_t)b * l->count + a]);
}

/* `addresses` has the first host of each. */
static void links_take(struct links *l, uint32_t from, struct hsearch_data *addresses)
{
    for (char *at = l->asked[from].said, *end; (at = strstr(at, PD_LAUNCH_UNREACHED)); at = end + 1) {
        at += strlen(PD_LAUNCH_UNREACHED);
        if (!(end = strchr(at, '\n'))) return;
        *end = '\0';
        const struct pd_launch_host_seen *to = first_of(addresses, at, NULL);
        if (to) l->is_lost[(size_t)from * l->count + (size_t)(to - l->hosts)] = true;
    }
}

static void links_set(struct links *l, struct hsearch_data *addresses)
{
    const uint32_t n = l->count;
    for (uint32_t k = 0; k < n; k++)
        if (l->hosts[k].address[0]) (void)first_of(addresses, l->hosts[k].address, &l->hosts[k]);
    for (uint32_t i = 0; i < n; i++)
        if (l->hosts[i].answers) links_take(l, i, addresses);
    for (uint32_t k = 0; k < n; k++) { /* other names of an address share its broken links */
        const struct pd_launch_host_seen *first =
            l->hosts[k].address[0] ? first_of(addresses, l->hosts[k].address, NULL) : NULL;
        for (uint32_t i = 0; first && i < n; i++)
            l->is_lost[(size_t)i * n + k] = i != k && l->is_lost[(size_t)i * n + (size_t)(first - l->hosts)];
    }
    for (uint32_t k = 0; k < n; k++)
        for (uint32_t i = 0, answers = answers_somebody(l, k); i < n && !answers; i++)
            l->is_lost[(size_t)i * n + k] = false;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < n; k++)
            l->cut[i] += l->takes_part[i] && l->takes_part[k] && is_cut(l, i, k);
}

/* If two hosts cannot reach each other, leave out the one with more broken links; of equal ones the last. */
static bool leave_one_out(struct links *l)
{
    uint32_t worst = 0, first = l->count;
    for (uint32_t i = 0; i < l->count; i++)
        if (l->takes_part[i] && l->cut[i] && l->cut[i] >= l->cut[worst]) worst = i;
    if (!l->takes_part[worst] || !l->cut[worst]) return false;
    l->takes_part[worst] = false;
    for (uint32_t k = l->count; k-- > 0;) {
        if (!l->takes_part[k] || !is_cut(l, worst, k)) continue;
        l->cut[k]--;
        first = k;
    }
    l->cut[worst] = 0;
    memcpy(l->hosts[worst].cut_off_from, l->hosts[first].name, sizeof l->hosts[first].name);
    return true;
}

static void find_links(struct links *l, struct hsearch_data *addresses, int results)
{
    for (uint32_t i = 0; i < l->count; i++)
        l->takes_part[i] = l->hosts[i].knows_links = l->hosts[i].answers;
    links_set(l, addresses);
    while (leave_one_out(l))
        ;
    for (uint32_t i = 0; i < l->count; i++)
        tell(results, l->hosts, i);
}

/* Addresses of all other hosts. malloc'ed; NULL: no memory. */
static char *addresses_but(const struct pd_launch_host_seen *hosts, uint32_t count, uint32_t self)
{
    size_t bytes;
    char *text = NULL;
    FILE *out = open_memstream(&text, &bytes);
    for (uint32_t i = 0; out && i < count; i++)
        if (i != self && hosts[i].address[0]) fprintf(out, " %s", hosts[i].address);
    if (out) (void)fclose(out);
    return text;
}

/* ---- asking ---- */

static uint32_t begin_to_ask_all(const struct question *q, struct pd_launch_host_seen *hosts, uint32_t count,
                                 struct asked *asked, int results)
{
    uint32_t left = 0;
    for (uint32_t i = 0; i < count; i++) {
        char *links = q->asks_links ? addresses_but(hosts, count, i) : NULL;
        if (hosts[i].answers)
            own_machine(hosts[i].machine);
        else
            hosts[i].is_silent = begin_to_ask(q, hosts[i].name, links ? links : "", &asked[i]) > 0;
        left += hosts[i].is_silent;
        tell(results, hosts, i);
        free(links);
    }
    return left;
}

/* True: it answered yes or no. */
static bool take_answer(struct pd_launch_host_seen *h, struct asked *a)
{
    int status;
    hear(a);
    if (waitpid(a->process, &status, WNOHANG) != a->process) return false;
    h->answers = WIFEXITED(status) && WEXITSTATUS(status) == 0;
    h->lacks_program = WIFEXITED(status) && WEXITSTATUS(status) == LACKS_PROGRAM;
    h->is_silent = false;
    if (h->answers) take_machine(a, h->machine);
    return true;
}

/* Asks all in parallel. Busy machines answer slowly, so while answers arrive the others get more time. */
static void ask_all(const struct question *q, struct pd_launch_host_seen *hosts, uint32_t count, int results)
{
    struct asked *asked = calloc(count, sizeof *asked);
    if (!asked) _exit(1);
    int slowest_ms = q->slowest_ms, last_ms = 0;
    const int links_ms = q->asks_links ? LINKS_MS : 0;
    uint32_t left = begin_to_ask_all(q, hosts, count, asked, results);
    const uint64_t began = pd_clock_monotonic_ns(NULL);
    if (q->asks_links && hosts[0].answers) ask_from_here(hosts, count, &asked[0]);
    for (int waited_ms = 0; left && pd_launch_look_waits(q->patience, slowest_ms, last_ms, waited_ms - links_ms);
         waited_ms = (int)(pd_clock_seconds_since(began) * 1e3)) {
        for (uint32_t i = 0; i < count; i++) {
            if (!hosts[i].is_silent || !take_answer(&hosts[i], &asked[i])) continue;
            left--;
            last_ms = waited_ms;
            if (hosts[i].answers && waited_ms >= slowest_ms) slowest_ms = waited_ms + 1;
            hosts[i].after_ms = (uint32_t)waited_ms + 1;
            tell(results, hosts, i);
        }
        if (left) pd_clock_sleep_ns(10000000);
    }
    for (uint32_t i = 0; i < count; i++)
        if (hosts[i].is_silent) kill(asked[i].process, SIGKILL);
    struct links links = {.hosts = hosts,
                          .asked = asked,
                          .takes_part = calloc(count, sizeof *links.takes_part),
                          .is_lost = calloc(count, count * sizeof *links.is_lost),
                          .cut = calloc(count, sizeof *links.cut),
                          .count = count};
    struct hsearch_data addresses = {0};
    if (q->asks_links && links.takes_part && links.is_lost && links.cut && hcreate_r(2 * (size_t)count, &addresses))
        find_links(&links, &addresses, results);
    hdestroy_r(&addresses);
    free(links.takes_part);
    free(links.is_lost);
    free(links.cut);
    free(asked);
}

/* Ranks fill hosts in this order: if the launcher's host is used, it gets rank 0, which writes the run's record. */
static void own_first(struct pd_launch_host_seen *hosts, uint32_t count)
{
    uint32_t own = 0;
    while (own < count && !is_own_name(hosts[own].name))
        own++;
    for (own = own < count ? own : 0; own < count && !hosts[own].answers;)
        own++;
    if (own == count) return;
    const struct pd_launch_host_seen first = hosts[own];
    memmove(hosts + 1, hosts, own * sizeof *hosts);
    hosts[0] = first;
}

static void look(const char *source, const struct question *q, uint32_t slots, int results)
{
    struct pd_launch_host_seen *hosts;
    uint32_t count;
    struct pd_error err = {0};
    const char *text = source_read(source, results);
    if (pd_launch_hosts_parse(text, slots, &hosts, &count, &err)) fail(results, source, err.message);
    if (!count) fail(results, source, "it names no host");
    names_resolve_all(hosts, count);
    own_first(hosts, count);
    ask_all(q, hosts, count, results);
    _exit(0);
}

/* ---- in the launcher ---- */

pd_status pd_launch_look_begin(const char *source, const char *agent, uint32_t slots, uint32_t patience,
                               struct pd_launch_look *current, struct pd_error *err)
{
    int results[2];
    struct pd_launch_look l = {.results = -1, .began_ns = pd_clock_monotonic_ns(NULL), .slowest_ms = current->slowest_ms};
    l.secret = current->secret;
    l.secret_dir = current->secret_dir;
    const struct question q = {agent, l.secret, l.secret_dir, (int)patience, (int)l.slowest_ms, current->asks_links};
    const pid_t launcher = getpid();
    if (pipe2(results, O_CLOEXEC)) PD_FAIL_ERRNO(err, errno, "looking for hosts");
    fflush(NULL);
    l.process = fork();
    if (l.process == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        setpgid(0, 0); /* the launcher handles an interrupt from the terminal */
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() == launcher) look(source, &q, slots, results[1]);
        _exit(1);
    }
    const int number = errno;
    close(results[1]);
    if (l.process < 0) {
        close(results[0]);
        PD_FAIL_ERRNO(err, number, "looking for hosts");
    }
    l.results = results[0];
    *current = l;
    return PD_OK;
}

/* True: no more records. */
static bool take_finding(struct pd_launch_look *l)
{
    struct finding f;
    const ssize_t got = read(l->results, &f, sizeof f);
    if (got < 0 && errno == EINTR) return false;
    if (got != (ssize_t)sizeof f) return true;
    if (f.number == FAILED)
        memcpy(l->failure, f.failure, sizeof l->failure);
    else if (f.number < l->count)
        l->hosts[f.number] = f.host;
    else if (pd_grow(&l->hosts, l->count, sizeof *l->hosts))
        l->hosts[l->count++] = f.host;
    else
        return true;
    return false;
}

bool pd_launch_look_poll(struct pd_launch_look *l, int timeout_ms)
{
    struct pollfd one = {.fd = l->results, .events = POLLIN};
    while (l->process && poll(&one, 1, timeout_ms) > 0)
        if (take_finding(l)) return true;
    return !l->process;
}

void pd_launch_look_cancel(struct pd_launch_look *l)
{
    if (!l->process) return;
    kill(l->process, SIGKILL);
    waitpid(l->process, NULL, 0);
    close(l->results);
    free(l->hosts);
    *l = (struct pd_launch_look){
        .results = -1, .slowest_ms = l->slowest_ms, .secret = l->secret, .secret_dir = l->secret_dir};
}

/* The first name of a machine gets its ranks. */
static void find_same(struct pd_launch_host_seen *hosts, uint32_t count, struct hsearch_data *machines)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct pd_launch_host_seen *first =
            hosts[i].machine[0] ? first_of(machines, hosts[i].machine, &hosts[i]) : &hosts[i];
        if (first == &hosts[i]) continue;
        snprintf(hosts[i].same_as, sizeof hosts[i].same_as, "%s", first->name);
        hosts[i].slots = 0;
    }
}

pd_status pd_launch_look_peek(const struct pd_launch_look *l, struct pd_launch_host_seen **ret_hosts, uint32_t *ret_count,
                              struct pd_error *err)
{
    struct hsearch_data machines = {0};
    if (l->failure[0]) PD_FAIL(err, PD_UNSUPPORTED, "%s", l->failure);
    if (!l->count) PD_FAIL(err, PD_UNSUPPORTED, "launch.hosts: the process that looks for hosts ended without a message");
    struct pd_launch_host_seen *hosts = calloc(l->count, sizeof *hosts);
    if (!hosts || !hcreate_r(2 * (size_t)l->count, &machines)) {
        free(hosts);
        PD_FAIL(err, PD_NO_MEMORY, "a list of hosts");
    }
    memcpy(hosts, l->hosts, l->count * sizeof *hosts);
    find_same(hosts, l->count, &machines);
    hdestroy_r(&machines);
    *ret_hosts = hosts;
    *ret_count = l->count;
    return PD_OK;
}

pd_status pd_launch_look_end(struct pd_launch_look *l, struct pd_launch_host_seen **ret_hosts, uint32_t *ret_count,
                             struct pd_error *err)
{
    PD_CHECK(l->process);
    uint32_t slowest_ms = 0;
    const pd_status st = pd_launch_look_peek(l, ret_hosts, ret_count, err);
    for (uint32_t i = 0; i < l->count; i++)
        if (l->hosts[i].answers && l->hosts[i].after_ms > slowest_ms) slowest_ms = l->hosts[i].after_ms;
    if (slowest_ms) l->slowest_ms = slowest_ms;
    pd_launch_look_cancel(l);
    return st;
}
