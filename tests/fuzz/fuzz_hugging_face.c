/* A config.json. A model that we have is written again, and that reads as the same. */
#include "tests/fuzz/target.h"
#include "trainer/model/hugging_face.h"

#include <stdlib.h>
#include <string.h>

static void write_and_read(const struct pd_model_config *config, const struct pd_special_tokens *tokens)
{
    struct pd_model_config again;
    struct pd_special_tokens tokens_again;
    struct pd_error err = {0};
    char *text, *generation;
    const pd_status st = pd_hugging_face_write(config, PD_F32, tokens, &text, &generation, &err);
    if (st && !err.message[0]) abort();
    if (st) return;
    if (pd_hugging_face_read("again", text, strlen(text), &again, &tokens_again, &err)) abort();
    if (again.vocab != config->vocab || again.hidden != config->hidden || again.ffn != config->ffn ||
        again.layers != config->layers || again.kv_heads != config->kv_heads || again.head_size != config->head_size ||
        tokens_again.bos != tokens->bos || tokens_again.eos_count != tokens->eos_count)
        abort();
    free(text);
    free(generation);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct pd_model_config config;
    struct pd_special_tokens tokens;
    struct pd_error err = {0};
    const pd_status st = pd_hugging_face_read("config.json", (const char *)data, bytes, &config, &tokens, &err);
    if (st && !err.message[0]) abort();
    if (!st) write_and_read(&config, &tokens);
    return 0;
}
