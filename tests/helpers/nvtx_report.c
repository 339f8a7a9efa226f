/* Takes the place of a profiler: NVTX_INJECTION64_PATH names this library, and NVTX calls it. When the process ends it adds a
 * line for each name of a range to the file NVTX_REPORT: how often it was pushed, its name. Ranges that were not popped count
 * under "open". */
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES = 64 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char names[NAMES][48];
static unsigned long counts[NAMES];
static long open_ranges;

static int push(const nvtxEventAttributes_t *range)
{
    pthread_mutex_lock(&lock);
    int i = 0;
    while (i + 1 < NAMES && counts[i] && strcmp(names[i], range->message.ascii))
        i++;
    snprintf(names[i], sizeof names[i], "%s", range->message.ascii);
    counts[i]++;
    open_ranges++;
    pthread_mutex_unlock(&lock);
    return 0;
}

static int pop(void)
{
    pthread_mutex_lock(&lock);
    open_ranges--;
    pthread_mutex_unlock(&lock);
    return 0;
}

__attribute__((destructor)) static void report(void)
{
    const char *path = getenv("NVTX_REPORT");
    FILE *f = path && counts[0] ? fopen(path, "a") : NULL;
    if (!f) return;
    for (int i = 0; i < NAMES && counts[i]; i++)
        fprintf(f, "%lu %s\n", counts[i], names[i]);
    fprintf(f, "%ld open\n", open_ranges);
    fclose(f);
}

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table);
__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table)
{
    const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table;
    unsigned size;
    if (!callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size)) return 0;
    *table[NVTX_CBID_CORE_RangePushEx] = (NvtxFunctionPointer)push;
    *table[NVTX_CBID_CORE_RangePop] = (NvtxFunctionPointer)pop;
    return 1;
}
