/* What a user starts as perdure: a program without libraries that becomes libexec/perdure, which has fifty. The loader takes
 * milliseconds for those, and TERM would end them with 143: it waits instead, since blocked and pending signals outlive an exec.
 *
 *   kernel ──▶ pd_entry: block all ──▶ libc ──▶ main: keep those of a launch blocked ──▶ exec ──▶ loader ──▶ main of main.c */
#include "trainer/launch/hold.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM "/libexec/perdure"

sigset_t pd_entry_before; /* signals that were blocked when this was started */

/* Where the kernel enters. libc's start asks the processor what it is, which takes a virtual machine half a millisecond. */
#ifdef __x86_64__
__asm__(".globl pd_entry\n"
        "pd_entry:\n"
        "    mov %rdx, %r8\n" /* for _start */
        "    push $-1\n"
        "    mov $14, %eax\n" /* rt_sigprocmask(SIG_BLOCK, all, &pd_entry_before, 8) */
        "    xor %edi, %edi\n"
        "    mov %rsp, %rsi\n"
        "    lea pd_entry_before(%rip), %rdx\n"
        "    mov $8, %r10d\n"
        "    syscall\n"
        "    pop %rsi\n"
        "    mov %r8, %rdx\n"
        "    jmp _start\n");
#else
__attribute__((constructor)) static void block_all(void)
{
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, &pd_entry_before);
}
#endif

int main(int argc, char **argv)
{
    char path[PATH_MAX + sizeof PROGRAM];
    const sigset_t launch = pd_launch_signals();
    if (argc >= 2 && strcmp(argv[1], "train") == 0) sigorset(&pd_entry_before, &pd_entry_before, &launch);
    sigprocmask(SIG_SETMASK, &pd_entry_before, NULL);
    const ssize_t length = readlink("/proc/self/exe", path, PATH_MAX);
    char *slash = length > 0 ? memrchr(path, '/', (size_t)length) : NULL;
    if (slash) {
        memcpy(slash, PROGRAM, sizeof PROGRAM);
        execv(path, argv);
    }
    fprintf(stderr, "perdure: %s: %s; it belongs beside the program that was started: copy libexec with it, or link to it "
            "(ln -s)\n", slash ? path : "/proc/self/exe", strerror(errno));
    return 70;
}
