#include "trainer/launch/requests.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#define MODULE "launch"

struct pd_launch_heard pd_launch_requests_hear(struct pd_launch_requests *requests, int number)
{
    struct pd_launch_heard heard = {.level = PD_LOG_INFO};
    if (number == SIGCHLD) return heard;
    if (number == SIGUSR2) {
        requests->saves++;
        snprintf(heard.text, sizeof heard.text, "SIGUSR2: saving and continuing");
    } else if (number == SIGINT && ++requests->interrupts > 1) {
        requests->wants_abort = true;
        heard = (struct pd_launch_heard){PD_LOG_WARN, "second SIGINT: ending the ranks now, without saving"};
    } else {
        if (!requests->wants_leave)
            snprintf(heard.text, sizeof heard.text, "SIG%s: saving and leaving%s", sigabbrev_np(number),
                     number == SIGINT ? "; once more ends without saving" : "");
        requests->wants_leave = true;
    }
    return heard;
}

void pd_launch_heard_log(const struct pd_launch_heard *heard)
{
    if (heard->text[0]) pd_log(heard->level, MODULE, "%s", heard->text);
}

void pd_launch_requests_poll(struct pd_launch_requests *requests, int timeout_ms)
{
    struct pollfd poll_one = {.fd = requests->signals, .events = POLLIN};
    if (poll(&poll_one, 1, timeout_ms) <= 0) return;
    struct signalfd_siginfo info;
    while (read(requests->signals, &info, sizeof info) == (ssize_t)sizeof info) {
        const struct pd_launch_heard heard = pd_launch_requests_hear(requests, (int)info.ssi_signo);
        pd_launch_heard_log(&heard);
    }
}
