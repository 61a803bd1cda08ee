"""vLLM's engine on a CPU: loads each safetensors file that is named on standard input, and generates two tokens."""

import os
import sys

# The engine in this process, so that weights can be handed over as tensors.
os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def main(model):
    import vllm._custom_ops as operations
    from safetensors.torch import load_file
    from vllm import LLM, SamplingParams

    # A CPU's kernels repack weights and drop them: nothing could be looked at.
    operations._supports_onednn = False
    engine = LLM(model, dtype="float32", enforce_eager=True, max_model_len=64, skip_tokenizer_init=True, seed=0)
    print("ready", flush=True)
    for line in sys.stdin:
        tensors = load_file(line.strip())
        engine.collective_rpc("reload_weights", kwargs={"weights_iterator": iter(tensors.items())})
        (answer,) = engine.generate(
            [{"prompt_token_ids": [5, 6, 7]}], SamplingParams(max_tokens=2, detokenize=False), use_tqdm=False
        )
        print("loaded", *answer.outputs[0].token_ids, flush=True)


main(*sys.argv[1:])
