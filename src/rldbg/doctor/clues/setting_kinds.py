"""How frameworks call the settings of sizes: batches, answers per prompt, ranks, lengths in tokens, the vocabulary."""

import re

BATCH = re.compile(r"batch_?size|mini_?batch|(?:^|_)[mg]bs$|(?:^|_)bsz$")
PART_OF_BATCH = re.compile(r"micro|mini|per_gpu|per_device")
COPIES = re.compile(
    r"(?:rollout|generation)\.n$|num_generations$|n_samples_per_\w+$|n_resp_per_prompt$|(?:^|[._])group_size$|"
    r"num_return_sequences$"
)
GPUS = re.compile(r"(?:n|num)_gpus(?:_per_node)?$|nproc_per_node$")
NODES = re.compile(r"nnodes$|num_nodes$")
RANKS = re.compile(
    r"world_size$|(?:tensor|data|context|expert|sequence)(?:_model)?_parallel_size$|(?:^|[._])[tdcep]p_size$"
)
TOKENS = re.compile(
    r"max_token_len\w*$|max_tokens_per_\w+$|(?:^|[._])(?:max_)?(?:seq|sequence|model|context)_?len(?:gth)?$|cutoff_len$|"
    r"max_length$|max_num_batched_tokens$|chunked_prefill_size$|max_prefill_tokens$|max_position_embeddings$"
)
PROMPT = re.compile(r"max_prompt_len(?:gth)?$|prompt_max_len$")
ANSWER = re.compile(r"max_(?:response|completion)_len(?:gth)?$|generate_max_len$|max_new_tokens$")
MICRO_BATCH = re.compile(r"micro_batch\w*$|micro_train_batch_size$|per_device_train_batch_size$|per_gpu\w*batch_size$")
VOCABULARY = re.compile(r"vocab_size$")
OF_MODEL = re.compile(
    r"hidden_size$|intermediate_size$|num_(?:attention|key_value)_heads$|head_dim$|num_hidden_layers$"
)
