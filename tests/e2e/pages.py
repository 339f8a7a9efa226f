#!/usr/bin/env python3
"""Matrices large enough to begin pages of their own: saved from where they lie and read where they belong. The state after a
resume on any number of ranks equals that of an undisturbed run, for shapes that are no multiple of a page."""
import harness

MODELS = {
    "gpt2": "{family: gpt2, vocab: 1021, context: 128, layers: 2, hidden: 704, heads: 11}",
    "llama": "{family: llama, vocab: 1021, context: 128, layers: 2, hidden: 576, heads: 9, kv_heads: 3, head_size: 64, "
             "ffn: 1000, qkv_bias: true}",
}
CONFIG = """
run: {{seed: 5, steps: 4}}
model: {model}
optimizer: {{decay_steps: 10}}
data: {{train: [{{path: {data}}}], validation_fraction: 0}}
batch: {{sequences: 3, micro_batch: 1, context: 32}}
validation: {{every: 0}}
checkpoint: {{every: 2}}
layout: {{transport: local, threads: 1}}
"""


def body(workspace, _):
    data = workspace.file("text.txt", harness.text_of(50000))
    for name, model in MODELS.items():
        config = workspace.file(f"{name}.yaml", CONFIG.format(model=model, data=data))
        undisturbed = workspace.directory()
        workspace.train(config, undisturbed, ["layout.ranks=2"])
        expected = workspace.state_digest(undisturbed), harness.losses(undisturbed)
        for before, after in [(1, 1), (1, 3), (3, 1)]:
            directory = workspace.directory()
            workspace.train(config, directory, [f"layout.ranks={before}", "run.steps=2"])
            workspace.train(config, directory, [f"layout.ranks={after}"])
            if (workspace.state_digest(directory), harness.losses(directory)) != expected:
                raise harness.Failure(f"{name}: {before} ranks, then {after}: state or losses differ from an undisturbed run's")
        print(f"{name}: same bits after every resume")


harness.main(body)
