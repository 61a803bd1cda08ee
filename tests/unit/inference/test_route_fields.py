"""Every documented field of every route is read, has no effect by its meaning, or is refused by name."""

import asyncio
import json
import re
from pathlib import Path

import pytest

from characters import Characters
from rldbg.inference.application import build_application
from rldbg.inference.backend import BackendStatus, ModelCard, WeightVersion
from rldbg.inference.generation import Delta, Finish, Outcome, PendingGeneration
from rldbg.inference.protocols import http
from rldbg.inference.protocols.route_fields import QUERY_FIELDS, ROUTE_FIELDS
from rldbg.inference.request_error import RequestError
from rldbg.trainer import CharacterTokenizer
from served_application import client_of

MESSAGES = [{"role": "user", "content": "1+1="}]
# What a route needs in order to answer; the others need nothing.
NEEDED = {
    "/generate": {"input_ids": [5, 6]},
    "/v1/completions": {"prompt": [5, 6]},
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/responses": {"input": "1+1", "max_output_tokens": 1},
    "/v1/responses/input_tokens": {"input": "1+1"},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/tokenize": {"prompt": "1+1"},
    "/inference/v1/generate": {"token_ids": [5, 6]},
    "/generate/": {"prompts": [[5, 6]]},
    "/chat/": {"messages": [MESSAGES]},
    "/get_sequence_logprobs/": {"sequences": [[5, 6, 7]], "prompt_lengths": [1]},
    "/update_weight_version": {"new_version": "3"},
    "/abort_request": {"abort_all": True},
    "/workers": {"url": "http://127.0.0.1:1"},
}
# A value of each field that is read, for its own sake.
VALUES = {
    "input_ids": [5, 6], "token_ids": [5, 6], "tokens": [5, 6], "text": "1+1", "prompt": "1+1", "messages": MESSAGES,
    "prompts": [[5, 6]], "sequences": [[5, 6, 7]], "prompt_lengths": [1], "url": "http://127.0.0.1:1", "mode": "abort",
    "n": 1, "temperature": 0.5, "top_p": 0.9, "top_k": 3, "min_p": 0.1, "stop": ["x"], "stop_token_ids": [4],
    "min_new_tokens": 1, "min_tokens": 1, "logprobs_mode": "raw", "max_tokens": 2, "max_new_tokens": 2, "seed": 1,
    "max_completion_tokens": 2, "sampling_seed": 1, "prompt_logprobs": 1, "top_logprobs": 1, "top_logprobs_num": 1,
    "logprob_start_len": 0, "position": 1, "model": "tiny", "request_id": "a", "rid": "a", "request_ids": ["a"],
    "tools": [], "tool_choice": "auto", "chat_template_kwargs": {}, "weight_version": "1", "version": "1",
    "new_version": "1", "model_path": "/nowhere", "weight_dir": "/nowhere", "safetensors": "AAAA",
    "serialized_named_tensors": ["x"], "frequency_penalty": 0.5, "presence_penalty": 0.5, "repetition_penalty": 1.5,
    "logit_bias": {"5": 1}, "allowed_token_ids": [5], "json": {}, "regex": "1", "choice": ["1"], "grammar": "x",
    "guided_json": {}, "guided_regex": "1", "guided_choice": ["1"], "guided_grammar": "x", "json_schema": {},
    "schema": {}, "ebnf": "x", "guided_decoding_regex": "1", "structured_outputs_regex": "1", "input": "1+1",
    "instructions": "1", "max_output_tokens": 1, "previous_response_id": "x",
    "include": ["reasoning.encrypted_content"],
    "reasoning_effort": "low", "effort": "low", "format": {"type": "text"}, "output_format": {"type": "text"},
    "system": "1", "stop_sequences": ["x"], "init_info": {"backend": "http"}, "update_info": {"names": []},
    "names": [], "dtypes": [], "shapes": [], "group_name": "g", "backend": "odd", "master_address": "x",
    "master_port": 1, "rank_offset": 1, "world_size": 2,
}  # fmt: skip
MAKES_TOKENS = ("/v1/completions", "/v1/chat/completions", "/generate/", "/chat/", "/v1/responses", "/v1/messages")
ASKS = {"asks": "for something"}


class Watched(dict):
    """An object that remembers which of its fields were looked at."""

    def __init__(self, content, seen, place=""):
        super().__init__(content)
        self._seen, self._place = seen, place

    def get(self, name, default=None):
        return self[name] if super().get(name) is not None else default

    def __getitem__(self, name):
        self._seen.add(f"{self._place}{name}")
        value = super().__getitem__(name)
        return Watched(value, self._seen, f"{self._place}{name}.") if isinstance(value, dict) else value


class OneToken:
    """A backend that answers everything with the token 5, at once: what a route reads needs no model."""

    card = ModelCard("tiny", "", 64, CharacterTokenizer.vocabulary_size, frozenset({1}), "float32", Characters())

    def submit(self, job, *, streams=False):
        answer, prompt = PendingGeneration(job), [None] + [-1.0] * (len(job.prompt) - 1)
        top = [[(5, -1.0)] * job.top_logprobs]
        if streams:
            answer.push(Delta([5], [-1.0], top))
        known = {"prompt_logprobs": prompt, "prompt_top": top * len(prompt), "prompt_ranks": [1] * len(prompt)}
        answer.finish(Outcome([5], [-1.0], [0], Finish("length"), "0", top=top, **known))
        return answer

    def status(self):
        return BackendStatus(0, 0, False, WeightVersion(), 0, 0, 0)

    def abort(self, job_id, *, with_samples=False):
        pass

    async def pause(self, mode):
        pass

    async def resume(self):
        pass

    async def name_version(self, label):
        return WeightVersion(label)

    async def load_folder(self, folder, label):
        raise RequestError(f"no weights {label}")

    load_file = load_tensors = load_folder

    async def close(self):
        pass


@pytest.fixture
def talk(monkeypatch):
    """Runs a scene that can send one body, and gets its answer and the fields that the route has looked at."""
    parse = http.parse_object
    seen = set()
    monkeypatch.setattr(http, "parse_object", lambda content: Watched(parse(content), seen))

    def run(scene):
        async def play():
            application = build_application(OneToken())
            async with client_of(application) as client:

                async def send(path, body):
                    seen.clear()
                    answer = await client.post(path, json=body)
                    return answer, set(seen)

                return await scene(application, send)

        return asyncio.run(play())

    return run


def body_with(path, name, value, inner=None):
    """A body that the route answers, with one more field, or one more field of an inner object."""
    body = dict(NEEDED.get(path, {})) | ({"max_tokens": 1} if path in MAKES_TOKENS and path != "/v1/responses" else {})
    limits = {"/generate": {"max_new_tokens": 1}, "/inference/v1/generate": {"max_tokens": 1}}
    if path in limits:
        body["sampling_params"] = limits[path]
    if path == "/generate" and name == "text":
        del body["input_ids"]
    if path == "/update_weight_version" and name == "weight_version":
        body = {}
    if name == "response_format":
        body["response_format"] = {"type": "json_schema" if inner in ("json_schema", "schema") else "text"}
    if path == "/tokenize" and name in ("messages", "tools", "chat_template_kwargs", "continue_final_message",
                                        "add_generation_prompt"):  # fmt: skip
        body = {"messages": MESSAGES}
    if path == "/update_weights_from_distributed":
        body = {"names": [], "dtypes": [], "shapes": []}
    elif path.startswith("/update_weights") and name in ("model_path", "weight_version"):
        body |= {"safetensors": "AAAA"} if path.endswith("tensor") else {"model_path": "/nowhere"}
    if path == "/generate" and name == "top_logprobs_num":
        body["return_logprob"] = True
    if name == "stream_options" and path.startswith("/v1/"):
        body["stream"] = True
    return body | {name: value if inner is None else body.get(name, {}) | {inner: value}}


def read_value(path, name):
    if name == "logprobs":
        return True if path == "/v1/chat/completions" else 1
    if path == "/chat/" and name == "messages":
        return [MESSAGES]
    if name == "tool_choice" and path.startswith("/v1/messages"):
        return {"type": "auto"}
    if name == "type":
        return "disabled" if path.startswith("/v1/messages") else "text"
    return VALUES.get(name, True)


def places(path):
    """Every field of a route, and every field of its inner objects: (name, inner name, rule)."""
    for name, rule in ROUTE_FIELDS[path].items():
        if rule.inner is None:
            yield name, None, rule
        for inner, inner_rule in (rule.inner or {}).items():
            if inner_rule.inner is None:
                yield name, inner, inner_rule


@pytest.mark.parametrize("path", ROUTE_FIELDS)
def test_every_documented_field_is_read_or_without_effect_or_refused(talk, path):
    async def scene(_application, send):
        for name, inner, rule in places(path):
            field = name if inner is None else f"{name}.{inner}"
            value = read_value(path, inner or name) if rule.use == "read" else ASKS
            answer, seen = await send(path, body_with(path, name, value, inner))
            told = (path, field, answer.text[:300])
            assert answer.status_code != 500, told
            if rule.use == "read":
                assert field in seen, f"{path} does not look at {field}: {answer.text[:300]}"
                assert "not supported" not in answer.text and "not a field" not in answer.text, told
            elif rule.use == "refused":
                assert answer.status_code == 400 and field in answer.text and "not supported" in answer.text, told
            else:
                assert "not supported" not in answer.text and "not a field" not in answer.text, told
        answer, _ = await send(path, body_with(path, "surprise", 1))
        assert answer.status_code == 400 and "surprise is not a field" in answer.text, (path, answer.text)

    talk(scene)


@pytest.mark.parametrize("path", ROUTE_FIELDS)
def test_values_that_ask_for_nothing_are_accepted(talk, path):
    async def scene(_application, send):
        refused = [(name, inner, rule) for name, inner, rule in places(path) if rule.use == "refused"]
        for name, inner, rule in refused:
            for value in (None, *((False, 0, "", [], {}) if rule.neutral is None else rule.neutral)):
                answer, _ = await send(path, body_with(path, name, value, inner))
                assert "not supported" not in answer.text, (path, name, inner, value, answer.text)
                assert path not in MAKES_TOKENS or answer.status_code == 200, answer.text

    talk(scene)


# Read from the request models of these versions' sources; "route.field" is an object in a body.
DOCUMENTED = json.loads(Path(__file__).with_name("documented_fields.json").read_text())


@pytest.mark.parametrize("version", DOCUMENTED)
def test_every_field_of_the_newest_engines_and_clients_is_declared(version):
    for place, names in DOCUMENTED[version].items():
        path, _, inner = place.partition(".")
        rules = ROUTE_FIELDS[path][inner].inner if inner else ROUTE_FIELDS[path]
        assert set(names.split()) <= set(rules), (version, place)


def test_every_route_that_takes_a_body_declares_its_fields_or_refuses_all(talk):
    async def scene(application, send):
        posted = {route.path for route in application.routes if "POST" in route.methods}
        assert set(ROUTE_FIELDS) <= posted
        for path in posted - set(ROUTE_FIELDS):
            answer, _ = await send(path, {})
            assert answer.status_code == 400, (path, answer.text)

    talk(scene)


@pytest.fixture
def ask():
    """One request with query parameters, of a server that has no model."""

    async def play(method, path, parameters):
        async with client_of(build_application(OneToken())) as client:
            sent = (
                {"content": b"x", "headers": {"Content-Type": "application/octet-stream"}} if "update" in path else {}
            )
            return await client.request(method, re.sub(r"{.*}", "x", path), params=parameters, **sent)

    return lambda *request: asyncio.run(play(*request))


def test_a_query_parameter_that_no_route_has_is_refused_by_name_on_every_route(ask):
    application = asyncio.run(_application())
    for route in application.routes:
        for method in route.methods - {"HEAD"}:
            answer = ask(method, route.path, {"surprise": "1"})
            assert answer.status_code == 400, (method, route.path, answer.text)
            assert "query parameter surprise is not a field" in answer.text


async def _application():
    return build_application(OneToken())


@pytest.mark.parametrize("path", QUERY_FIELDS)
def test_every_documented_query_parameter_is_read_or_without_effect_or_refused(ask, path):
    methods = {method for route in asyncio.run(_application()).routes if route.path == path for method in route.methods}
    for method in methods - {"HEAD"}:
        for name, rule in QUERY_FIELDS[path].items():
            answer = ask(method, path, {name: "odd"})
            if rule.use == "refused":
                assert answer.status_code == 400, (path, name)
                assert f"query parameter {name}" in answer.text and "not supported" in answer.text
                for value in rule.neutral:
                    assert "not supported" not in ask(method, path, {name: value}).text
            elif rule.use == "read":
                assert "odd" in answer.text, f"{path} does not look at {name}: {answer.text}"
            else:
                assert "query parameter" not in answer.text
