"""The documented fields of every route, declared once: what is read, what has no effect here, and what is refused.

A field that asks for something this server does not do is a 400 that names it. Clients send many fields with values
that ask for nothing: null always, and the neutral values of a refused field.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

from rldbg.inference.request_error import RequestError

FieldRules = Mapping[str, "FieldRule"]


@dataclass(frozen=True, slots=True)
class FieldRule:
    """What becomes of a field. A refused one may have its neutral values; None stands for all that are empty or 0."""

    use: Literal["read", "no effect", "refused"]
    neutral: tuple[Any, ...] | None = None
    inner: FieldRules | None = None
    details: Mapping[str, Any] | None = None

    def accepts(self, value: Any) -> bool:
        if value is None or self.use != "refused":
            return True
        return not value if self.neutral is None else value in self.neutral


_READ, _NO_EFFECT, _REFUSED = FieldRule("read"), FieldRule("no effect"), FieldRule("refused")


def check_fields(body: Mapping[str, Any], rules: FieldRules, place: str = "") -> None:
    """Refuse the first field or query parameter, here or in an inner object, that asks for what is not done here."""
    for name, value in body.items():
        rule = rules.get(name)
        if not (rule or _REFUSED).accepts(value):
            raise RequestError(_refusal(f"{place}{name}", value, rule), details=rule.details if rule else None)
        if rule and rule.inner is not None:
            for item in value if isinstance(value, list) else [value]:
                if isinstance(item, dict):
                    check_fields(item, rule.inner, f"{place}{name}.")


def _refusal(name: str, value: Any, rule: FieldRule | None) -> str:
    if rule is None:
        return f"{name} is not a field of this route; remove it"
    if not rule.neutral:
        return f"{name} is not supported by this server; remove it"
    return f"{name}={value!r:.80} is not supported by this server; leave it at {' or '.join(map(repr, rule.neutral))}"


def _only(*values: Any) -> FieldRule:
    return FieldRule("refused", values)


def _rules(read: str = "", *, no_effect: str = "", refused: str = "", **others: FieldRule) -> dict[str, FieldRule]:
    return {
        **dict.fromkeys(read.split(), _READ),
        **dict.fromkeys(no_effect.split(), _NO_EFFECT),
        **dict.fromkeys(refused.split(), _REFUSED),
        **others,
    }


def _inner(rules: FieldRules) -> FieldRule:
    return FieldRule("read", inner=rules)


# What all protocols call by the same name. Spaces between special tokens are a matter of slow tokenizers.
_SAMPLING = _rules(
    "n temperature top_p top_k min_p stop stop_token_ids ignore_eos min_new_tokens min_tokens logprobs_mode "
    "frequency_penalty presence_penalty repetition_penalty logit_bias",
    no_effect="spaces_between_special_tokens",
)
_STRUCTURED = _inner(
    _rules(
        "json regex choice grammar json_object",
        refused="structural_tag whitespace_pattern disable_fallback disable_any_whitespace "
        "disable_additional_properties backend",
    )
)
_VLLM_SAMPLING = _rules(
    "max_tokens seed logprobs allowed_token_ids",
    refused="truncate_prompt_tokens bad_words logits_processors thinking_token_budget repetition_detection "
    "watermarking",
    structured_outputs=_STRUCTURED,
    guided_decoding=_STRUCTURED,
    length_penalty=_only(1),
    best_of=_only(1),
)
# How the features of pictures are returned; there are none.
_MEDIA_AS_TENSORS = _only("tensors")
_DISTRIBUTED = "bootstrap_host bootstrap_port bootstrap_room bootstrap_pair_key data_parallel_rank routed_dp_rank " \
    "disagg_prefill_dp_rank session_params session_id"  # fmt: skip
_SGLANG_EXTRAS = "lora_path custom_logit_processor return_hidden_states return_routed_experts watermark " + _DISTRIBUTED

_OPENAI = (
    _SAMPLING
    | _VLLM_SAMPLING
    | _rules(
        "model stream request_id rid sampling_seed skip_special_tokens include_stop_str_in_output no_stop_trim "
        "prompt_logprobs return_token_ids return_tokens_as_token_ids guided_json guided_regex guided_choice "
        "guided_grammar json_schema regex ebnf",
        no_effect="user cache_salt extra_key detokenize stream_interval",
        refused="guided_structural_tag guided_decoding_backend "
        "guided_whitespace_pattern structural_tag stop_regex use_beam_search early_stopping "
        "priority kv_transfer_params ec_transfer_params vllm_xargs custom_params truncation_side "
        "return_cached_tokens_details logprob_token_ids routed_experts_prompt_start routed_experts_start_len "
        "return_token_offsets return_spec_tokens_details images_config custom_labels mm_processor_kwargs "
        f"return_mm_kwargs {_SGLANG_EXTRAS}",
        mm_payload=_MEDIA_AS_TENSORS,
        stream_options=_inner(
            _rules("include_usage", no_effect="include_obfuscation", refused="continuous_usage_stats")
        ),
        response_format=_inner(_rules("type json_schema schema", refused="structural_tag structures triggers")),
    )
)
_COMPLETIONS = _OPENAI | _rules("prompt echo", refused="suffix prompt_embeds", add_special_tokens=_only(True))
_CHAT = _OPENAI | _rules(
    "messages max_completion_tokens top_logprobs tools tool_choice chat_template_kwargs continue_final_message "
    "add_generation_prompt include_reasoning separate_reasoning reasoning_effort parallel_tool_calls",
    # How log probs are written that are refused below.
    no_effect="metadata safety_identifier prompt_cache_key prompt_cache_retention prompt_cache_options "
    "return_flat_raw_top_logprobs_b64",
    refused="documents chat_template media_io_kwargs prediction "
    "functions function_call reasoning verbosity store add_special_tokens return_prompt_text return_meta_info "
    "return_assistant_tokens_mask return_prompt_token_ids return_sampling_mask task max_dynamic_patch "
    "min_dynamic_patch use_audio_in_video video_config input_ids thinking moderation return_input_ids_in_sglext "
    "return_output_ids_in_sglext sampling_logprobs_mode return_flat_raw_output_top_logprobs",
    # An object without fields asks for sound, or a search, too.
    audio=_only(),
    web_search_options=_only(),
    echo=_only(False),
    modalities=_only(["text"], []),
    service_tier=_only("auto", "default"),
    stream_reasoning=_only(True),
)
# What the other chat protocols have of vLLM's fields, so that they can be used with the same models.
_CHAT_EXTRAS = _rules(
    "temperature top_p top_k min_p seed ignore_eos stop_token_ids min_tokens min_new_tokens logprobs_mode request_id "
    "return_token_ids frequency_penalty presence_penalty repetition_penalty logit_bias allowed_token_ids",
    no_effect="cache_salt",
    refused="priority skip_special_tokens include_stop_str_in_output mm_processor_kwargs media_io_kwargs "
    "kv_transfer_params ec_transfer_params vllm_xargs watermarking return_mm_kwargs",
    mm_payload=_MEDIA_AS_TENSORS,
)
_RESPONSES = _CHAT_EXTRAS | _rules(
    "model input instructions tools tool_choice max_output_tokens stream store previous_response_id top_logprobs "
    "include stop chat_template_kwargs include_reasoning parallel_tool_calls",
    no_effect="metadata user safety_identifier prompt_cache_key prompt_cache_retention prompt_cache_options extra_key",
    refused="background conversation max_tool_calls prompt context_management moderation access_programs image "
    f"enable_response_messages previous_input_messages {_DISTRIBUTED}",
    structured_outputs=_STRUCTURED,
    truncation=_only("disabled"),
    service_tier=_only("auto", "default"),
    text=_inner(_rules("format", verbosity=_only("medium"))),
    reasoning=_inner(_rules("effort", no_effect="summary generate_summary encrypted_content")),
    stream_options=_inner(_rules(no_effect="include_obfuscation")),
)
_RESPONSE_TOKENS = {
    name: _RESPONSES[name]
    for name in ("conversation", "input", "instructions", "parallel_tool_calls", "previous_response_id", "reasoning",
                 "text", "tool_choice", "tools", "truncation")
} | _rules(no_effect="model", refused="personality")  # fmt: skip
_COUNT_TOKENS = _rules(
    "system messages tools tool_choice chat_template_kwargs",
    no_effect="model cache_control workspace_id billing_policy",
    refused="context_management mcp_servers speed user_profile_id betas compaction",
    thinking=_inner(_rules("type", no_effect="budget_tokens display")),
    output_config=_inner(_rules("format effort", refused="task_budget")),
    output_format=_READ,
)
_MESSAGES = _CHAT_EXTRAS | _COUNT_TOKENS | _rules(
    "model max_tokens stop_sequences stream",
    no_effect="metadata inference_geo",
    refused="container diagnostics fallbacks fallback_credit_token",
    # By these details Anthropic's tool runner learns that it has to send the whole conversation.
    thread=FieldRule("refused", details={"error_code": "thread_unsupported_request", "unsupported": ["thread"]}),
    service_tier=_only("auto", "standard_only"),
)  # fmt: skip
_TOKENIZE = _rules(
    "prompt messages tools chat_template_kwargs add_special_tokens continue_final_message add_generation_prompt",
    no_effect="model",
    refused="chat_template mm_processor_kwargs media_io_kwargs return_token_strs reasoning_effort",
    tool_choice=_only("auto", "none"),
)
# Tokens in, tokens out: what concerns text has no effect.
_TOKEN_GENERATION = _rules(
    "request_id token_ids",
    no_effect="model cache_salt stream_options",
    refused="stream features priority kv_transfer_params ec_transfer_params assistant_tokens_mask token_offsets "
    "content_parts reasoning_ended reasoning_parser_kwargs return_token_ids",
    output_mode=_only("tokens"),
    sampling_params=_inner(
        _SAMPLING
        | _VLLM_SAMPLING
        | _rules(
            no_effect="detokenize skip_special_tokens include_stop_str_in_output output_kind skip_clone "
            "skip_reading_prefix_cache stream_interval output_text_buffer_length",
            refused="flat_logprobs extra_args logprob_token_ids routed_experts_prompt_start trace_decode_token_ids "
            "prompt_logprob_token_ids prompt_logprob_start",
            prompt_logprobs=_only(),
        )
    ),
)
_GENERATE = _rules(
    "input_ids text sampling_params rid stream return_logprob logprob_start_len top_logprobs_num "
    "return_text_in_logprobs",
    no_effect="model log_metrics no_logs modalities background conversation_id extra_key routing_key custom_labels "
    "external_trace_header cache_salt received_time http_worker_ipc",
    refused="image_data audio_data video_data input_embeds token_ids_logprob lora_id priority return_entropy "
    "return_bytes return_prompt_token_ids require_reasoning use_audio_in_video mm_processor_kwargs "
    "mm_hashes mm_content_hashes video_config return_sampling_mask return_flat_raw_top_logprobs images_config "
    "return_flat_raw_top_logprobs_b64 return_indexer_topk positional_embed_overrides decode_tp_size "
    "max_thinking_tokens need_wait_for_mm_inputs num_items_assigned encoder_urls max_dynamic_patch min_dynamic_patch "
    "image_max_dynamic_patch video_max_dynamic_patch multi_item_delimiter_indices sampling_logprobs_mode "
    "return_flat_raw_output_top_logprobs token_indices_to_pool kv_hints "
    f"routed_experts_start_len {_SGLANG_EXTRAS}",
    sampling_params=_inner(
        _SAMPLING
        | _rules(
            "max_new_tokens sampling_seed skip_special_tokens no_stop_trim json_schema regex ebnf",
            no_effect="stream_interval",
            refused="structural_tag stop_regex watermark stop_strs stop_regex_strs stop_str_max_len "
            "stop_regex_max_len is_normalized ebnf_full_assistant",
            beam_width=_only(1),
            custom_params=_inner(_rules("position")),
        )
    ),
)
_TRL_OPTIONS = _SAMPLING | _VLLM_SAMPLING | _rules(
    "guided_decoding_regex", no_effect="detokenize skip_special_tokens include_stop_str_in_output",
    prompt_logprobs=_only(),
)  # fmt: skip
_TRL = _TRL_OPTIONS | _rules(
    "structured_outputs_regex", refused="images", generation_kwargs=_inner(_TRL_OPTIONS)
)  # fmt: skip
# There is no prefix cache to flush, and memory stays where it is.
_UPDATE = _rules(
    "weight_version",
    no_effect="rid http_worker_ipc flush_cache torch_empty_cache recapture_cuda_graph",
    refused="is_async keep_pause token_step files manifest disable_draft_model",
    load_format=_only("auto", "safetensors"),
)
_BUCKETS = FieldRule("refused", ("auto", "safetensors", "direct", "flattened_bucket"))
_NO_FIELDS: FieldRules = MappingProxyType({})
_IDS = "rid http_worker_ipc"

ROUTE_FIELDS: Mapping[str, FieldRules] = MappingProxyType(
    {
        "/generate": _GENERATE,
        "/v1/completions": _COMPLETIONS,
        "/v1/chat/completions": _CHAT,
        "/v1/responses": _RESPONSES,
        "/v1/responses/input_tokens": _RESPONSE_TOKENS,
        "/v1/messages": _MESSAGES,
        "/v1/messages/count_tokens": _COUNT_TOKENS,
        "/tokenize": _TOKENIZE,
        "/detokenize": _rules("tokens skip_special_tokens", no_effect="model"),
        "/inference/v1/generate": _TOKEN_GENERATION,
        "/generate/": _TRL | _rules("prompts"),
        "/chat/": _TRL | _rules("messages tools chat_template_kwargs", refused="chat_template"),
        "/get_sequence_logprobs/": _rules(
            "sequences prompt_lengths top_logprobs", temperature=_only(1), response_format=_only("json")
        ),
        "/update_weights_from_disk": _UPDATE | _rules("model_path abort_all_requests"),
        "/update_weights_from_tensor": _UPDATE
        | _rules("safetensors serialized_named_tensors", refused="abort_all_requests", load_format=_BUCKETS),
        "/init_weights_update_group": _rules(
            "master_address master_port rank_offset world_size group_name backend", no_effect=_IDS
        ),
        "/update_weights_from_distributed": _UPDATE
        | _rules("names dtypes shapes group_name abort_all_requests", load_format=_BUCKETS),
        "/update_weights": _rules("weight_dir model_path weight_version update_info"),
        "/init_weight_transfer_engine": _rules("init_info"),
        "/start_weight_update": _NO_FIELDS,
        "/finish_weight_update": _rules("weight_version"),
        "/areal_update_weights": _UPDATE | _rules("model_path version", refused="abort_all_requests"),
        "/update_weight_version": _rules("new_version weight_version abort_all_requests", no_effect=_IDS),
        "/pause_generation": _rules("mode", no_effect=_IDS),
        "/continue_generation": _rules(no_effect=f"torch_empty_cache {_IDS}"),
        "/abort_request": _rules(
            "rid abort_all", no_effect="http_worker_ipc", refused="finished_reason abort_message"
        ),
        "/abort_requests": _rules("request_ids"),
        "/workers": _rules("url", refused="bootstrap_port", worker_type=_only("regular")),
        "/destroy_weights_update_group": _rules("group_name", no_effect=_IDS),
        "/release_memory_occupation": _rules(no_effect=f"tags {_IDS}"),
        "/resume_memory_occupation": _rules(no_effect=f"tags {_IDS}"),
        **dict.fromkeys(
            ("/get_weight_version", "/flush_cache", "/areal_pause_generation", "/areal_continue_generation", "/pause",
             "/resume", "/sleep", "/wake_up", "/reset_prefix_cache", "/reset_prefix_cache/", "/close_communicator/",
             "/add_worker", "/remove_worker"),
            _NO_FIELDS,
        ),
    }
)  # fmt: skip

_NO = FieldRule("refused", ("", "false", "False", "0", "0.0"))
_VERSION: FieldRules = {"weight_version": _READ}
_URL: FieldRules = {"url": _READ}
# Anthropic's beta clients name their interface so; the fields of the body say what they ask for.
_BETA: FieldRules = {"beta": _NO_EFFECT}

# The documented query parameters of every route; like the fields of a body, none is ignored. Values are texts, so the
# neutral values of a refused parameter are texts as well. Memory stays where it is; there is no prefix cache, and one
# rank.
QUERY_FIELDS: Mapping[str, FieldRules] = MappingProxyType(
    {
        "/pause": {"mode": _READ, "clear_cache": _NO_EFFECT, "wait_for_inflight_requests": _NO},
        "/sleep": {"mode": _READ, "level": _NO_EFFECT},
        "/wake_up": {"tags": _NO_EFFECT},
        "/reset_prefix_cache": {"reset_running_requests": _NO, "reset_external": _NO_EFFECT},
        "/flush_cache": {"timeout": _NO},
        "/get_world_size": {"include_dp": _NO_EFFECT},
        "/server_info": {"config_format": FieldRule("refused", ("json",))},
        "/v1/loads": {
            "dp_rank": FieldRule("refused", ("0",)),
            "include": FieldRule("refused", ("core", "all")),
            "format": FieldRule("refused", ("json",)),
        },
        "/v1/responses/{response}": {
            "include": FieldRule("refused", ()),
            "include[]": FieldRule("refused", ()),
            "stream": _NO,
            "starting_after": FieldRule("refused", ()),
            "include_obfuscation": _NO_EFFECT,
        },
        "/v1/models": {"limit": _NO_EFFECT, "after": FieldRule("refused", ()), "after_id": FieldRule("refused", ()),
                       "before_id": FieldRule("refused", ())},
        "/v1/messages": _BETA,
        "/v1/messages/count_tokens": _BETA,
        "/update_weights": _VERSION,
        "/update_weights_from_tensor": _VERSION,
        "/add_worker": _URL,
        "/remove_worker": _URL,
    }
)  # fmt: skip
