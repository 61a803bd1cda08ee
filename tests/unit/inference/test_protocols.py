"""Each protocol's requests and answers, over the tiny model in this process."""

import asyncio
import base64
import json

import pytest
import torch
from safetensors.torch import save

from characters import Characters
from rldbg.inference.application import Service, build_application
from rldbg.inference.embedded.loading import embed
from rldbg.trainer import CharacterTokenizer, ModelSettings, build_model
from rounding import decided, near
from served_application import client_of

CHAT = {"messages": [{"role": "user", "content": "1+1="}]}
GREEDY = {"temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def model():
    torch.set_num_threads(1)
    return build_model(ModelSettings(), vocabulary_size=CharacterTokenizer.vocabulary_size, seed=0).to_transformers()


@pytest.fixture
def talk(model):
    """Runs a scene with a client of a server of its own."""

    def run(scene, **service):
        async def play():
            backend = embed(model, text=Characters(), name="tiny", device="cpu")
            settings = Service(replicas=lambda: ["127.0.0.1:1"], **service)
            async with client_of(build_application(backend, settings)) as client:
                return await scene(client)

        return asyncio.run(play())

    return run


async def post(client, path, status=200, **body):
    answer = await client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json() if answer.content else None


def events(answer):
    lines = [line[6:] for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_one_answer_over_every_protocol(talk, model):
    async def scene(client):
        sglang = await post(
            client, "/generate", input_ids=[5, 12, 6], sampling_params=GREEDY | {"max_new_tokens": 5},
            return_logprob=True, logprob_start_len=0, top_logprobs_num=2,
        )  # fmt: skip
        openai = await post(
            client, "/v1/completions", prompt=[5, 12, 6], max_tokens=5, logprobs=2, return_token_ids=True,
            prompt_logprobs=1, **GREEDY,
        )  # fmt: skip
        areal = await post(
            client, "/v1/completions", prompt=[5, 12, 6], max_tokens=5, logprobs=0, return_tokens_as_token_ids=True,
            use_beam_search=False, top_k=100_000_000, **GREEDY,
        )  # fmt: skip
        trl = await post(client, "/generate/", prompts=["3+4"], max_tokens=5, logprobs=0, **GREEDY)
        prime = await post(
            client,
            "/inference/v1/generate",
            token_ids=[5, 12, 6],
            sampling_params=GREEDY | {"max_tokens": 5, "logprobs": 0},
        )
        text = await post(client, "/generate", text="3+4", sampling_params=GREEDY | {"max_new_tokens": 5})
        return sglang, openai["choices"][0], areal["choices"][0], trl, prime["choices"][0], text

    sglang, openai, areal, trl, prime, text = talk(scene)
    meta = sglang["meta_info"]
    tokens, logprobs = sglang["output_ids"], [entry[0] for entry in meta["output_token_logprobs"]]
    assert decided(model, (5, 12, 6), tokens), "each protocol may batch the prompt in another shape"
    assert len(tokens) == 5 and meta["finish_reason"] == {"type": "length", "length": 5}
    assert [entry[1] for entry in meta["output_token_logprobs"]] == tokens
    assert openai["token_ids"] == trl["completion_ids"][0] == prime["token_ids"] == text["output_ids"] == tokens
    assert areal["logprobs"]["tokens"] == [f"token_id:{token}" for token in tokens]
    assert openai["logprobs"]["token_logprobs"] == near(logprobs)
    assert areal["logprobs"]["token_logprobs"] == near(logprobs)
    assert [place[0] for place in trl["logprobs"][0]] == near(logprobs)
    assert [entry["logprob"] for entry in prime["logprobs"]["content"]] == near(logprobs)
    inputs = meta["input_token_logprobs"]
    assert inputs[0][0] is None and [entry[1] for entry in inputs] == [5, 12, 6]
    assert openai["prompt_logprobs"][1]["12"]["logprob"] == near(inputs[1][0])
    ranks = [entry["rank"] for place in openai["prompt_logprobs"][1:] for entry in place.values()]
    assert all(isinstance(rank, int) and rank >= 1 for rank in ranks) and max(ranks) > 1, "also of unlikely tokens"
    assert [len(place) for place in meta["output_top_logprobs"]] == [2] * 5
    assert meta["weight_version"] == "0" and meta["logprobs_mode"] == "raw"


def test_streams_are_the_whole_answer_in_parts(talk, model):
    sampling = GREEDY | {"max_new_tokens": 12}

    async def scene(client):
        whole = await post(client, "/generate", input_ids=[5, 6], sampling_params=sampling)
        parts = events(
            await client.post("/generate", json={"input_ids": [5, 6], "sampling_params": sampling, "stream": True})
        )
        stop = whole["text"][4:6]
        body = {"prompt": [5, 6], "max_tokens": 12, "stop": [stop], "stream": True, "n": 2, "return_token_ids": True}
        cut = events(await client.post("/v1/completions", json=body | GREEDY))
        chat = {"messages": [{"role": "user", "content": "1+1="}], "max_tokens": 4, "stream": True, "logprobs": True}
        talked = events(await client.post("/v1/chat/completions", json=chat | GREEDY))
        return whole, parts, stop, cut, talked

    whole, parts, stop, cut, talked = talk(scene)
    assert decided(model, (5, 6), whole["output_ids"]), "two samples at once are another batch shape"
    assert parts[-1]["output_ids"] == whole["output_ids"] and parts[-1]["text"] == whole["text"]
    assert all(whole["output_ids"][: len(part["output_ids"])] == part["output_ids"] for part in parts)
    for index in range(2):
        choices = [event["choices"][0] for event in cut if event["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in choices) == whole["text"][: whole["text"].index(stop)]
        assert (choices[-1]["finish_reason"], choices[-1]["stop_reason"]) == ("stop", stop)
        ids = [token for choice in choices for token in choice["token_ids"]]
        assert ids == whole["output_ids"][: len(ids)] and choices[0]["prompt_token_ids"] == [5, 6]
    assert talked[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert sum(len(event["choices"][0]["logprobs"]["content"]) for event in talked[1:]) == 4


def test_control_of_weights_and_generation(talk, model):
    other = build_model(ModelSettings(), vocabulary_size=CharacterTokenizer.vocabulary_size, seed=1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    weights = save({name: tensor.contiguous() for name, tensor in other.state_dict().items()})

    async def scene(client):
        kind = {"Content-Type": "application/octet-stream"}
        sent = await client.post("/update_weights_from_tensor?weight_version=7", content=weights, headers=kind)
        assert sent.json()["success"], sent.text
        after = await post(
            client, "/generate", input_ids=[5, 6], sampling_params=GREEDY | {"max_new_tokens": 6}, return_logprob=True
        )
        encoded = base64.b64encode(save({"lm_head.weight": before["lm_head.weight"]})).decode()
        await post(client, "/update_weights_from_tensor", safetensors=encoded, weight_version=8)
        assert (await client.get("/get_weight_version")).json() == {"weight_version": "8"}
        refused = await post(client, "/update_weights_from_tensor", status=400, serialized_named_tensors=["gASVAA=="])
        assert "serialized_named_tensors cannot be read" in refused["error"]["message"]
        missing = await post(client, "/areal_update_weights", status=400, model_path="/nowhere")
        assert missing["success"] is False
        group = await post(client, "/init_weights_update_group", status=400, master_address="x")
        assert "gloo groups only" in group["error"]["message"]
        await post(client, "/areal_pause_generation")
        assert (await client.get("/is_paused")).json() == {"is_paused": True}
        assert (await client.get("/health_generate")).status_code == 503
        waiting = asyncio.create_task(post(client, "/generate", input_ids=[5], sampling_params={"max_new_tokens": 1}))
        while not (await client.get("/v1/loads")).json()["loads"][0]["num_waiting_reqs"]:
            await asyncio.sleep(0.01)
        assert (await client.get("/flush_cache")).status_code == 400
        await post(client, "/continue_generation")
        assert len((await waiting)["output_ids"]) == 1
        return after

    try:
        after = talk(scene)
    finally:
        model.load_state_dict(before)
    ids = torch.tensor([[5, 6, *after["output_ids"]]])
    with torch.no_grad():
        expected = torch.log_softmax(other(ids).logits[0], -1)[1:-1].gather(-1, ids[0, 2:, None])[:, 0]
    seen = torch.tensor([entry[0] for entry in after["meta_info"]["output_token_logprobs"]])
    assert seen.tolist() == near(expected.tolist()) and after["meta_info"]["weight_version"] == "7"


def test_a_request_is_aborted_by_its_name_with_all_of_its_samples(talk):
    async def scene(client):
        long = GREEDY | {"max_new_tokens": 100, "n": 2}
        other = asyncio.create_task(post(client, "/generate", input_ids=[7], rid="other", sampling_params=GREEDY))
        await post(client, "/pause_generation", mode="in_place")
        asked = asyncio.create_task(post(client, "/generate", input_ids=[5, 6], rid="mine", sampling_params=long))
        while (await client.get("/v1/loads")).json()["loads"][0]["num_waiting_reqs"] < 2:
            await asyncio.sleep(0.01)
        await post(client, "/abort_request", rid="mine")
        ended = await asked
        await post(client, "/continue_generation")
        return ended, await other

    ended, other = talk(scene)
    assert [item["meta_info"]["finish_reason"]["type"] for item in ended] == ["abort", "abort"]
    assert ended[0]["meta_info"]["finish_reason"]["message"].startswith("Abort before prefill")
    assert other["meta_info"]["finish_reason"]["type"] == "length"


def test_slime_asks_its_router_and_its_workers(talk):
    async def scene(client):
        await post(client, "/workers", status=202, url="http://10.0.0.1:9", worker_type="regular")
        listed = (await client.get("/workers")).json()["workers"]
        removed = await client.delete("/workers/127.0.0.1:1")
        urls = (await client.get("/list_workers")).json()["urls"]
        unknown = await client.delete("/workers/nobody")
        info = (await client.get("/server_info")).json()
        return listed, removed.status_code, urls, unknown.status_code, info

    listed, removed, urls, unknown, info = talk(scene)
    assert [item["url"] for item in listed] == ["http://127.0.0.1:1", "http://10.0.0.1:9"]
    assert (removed, urls, unknown) == (200, ["http://10.0.0.1:9"], 404)
    assert info["enable_memory_saver"] is False and info["tp_size"] == 1


def test_what_is_refused_is_told_in_the_protocols_form(talk):
    async def scene(client):
        wrong = (
            ("/generate", {"input_ids": [5], "text": "5"}),
            ("/generate", {"input_ids": [5], "image_data": ["x"]}),
            ("/generate", {"input_ids": [5], "sampling_params": {"json_schema": "{}"}}),
            ("/generate", {"input_ids": [5], "sampling_params": {"frequency_penalty": 5}}),
            ("/generate", {"input_ids": [[5], [99]], "sampling_params": {}}),
            ("/v1/completions", {"prompt": [5], "temperature": -1}),
            ("/v1/completions", {"prompt": [5], "top_p": 0}),
            ("/v1/chat/completions", {"messages": []}),
            ("/v1/chat/completions", CHAT | {"chat_template": "{{ messages }}"}),
            ("/v1/chat/completions", CHAT | {"response_format": {"type": "json_object"}}),
            ("/v1/chat/completions", CHAT | {"tool_choice": "required"}),
            ("/v1/chat/completions", CHAT | {"chat_template_kwargs": 1}),
            ("/generate/", {"prompts": "x"}),
            ("/generate", {"text": "\ud800"}),
            ("/detokenize", {"tokens": [5, -1]}),
            ("/update_weights_from_tensor", {"safetensors": "\u00e9"}),
            ("/update_weights_from_tensor", {"safetensors": "\ud800"}),
        )
        for path, body in wrong:
            answer = await client.post(path, content=json.dumps(body), headers={"Content-Type": "application/json"})
            assert answer.status_code == 400, (path, body, answer.text)
            assert any(key in answer.json() for key in ("error", "detail"))
        assert (await client.get("/nope")).status_code == 404
        return await post(client, "/generate", input_ids=[5], sampling_params={"max_new_tokens": 1})

    assert talk(scene)["output_ids"]


def test_a_token_is_asked_for(talk):
    async def scene(client):
        shown = {"Authorization": "Bearer right"}
        codes = [
            (await client.get("/v1/models", headers=headers)).status_code
            for headers in ({}, {"Authorization": "Bearer wrong"}, shown, {"X-API-Key": "right"})
        ]
        return codes, (await client.get("/health")).status_code

    assert talk(scene, token="right") == ([401, 401, 200, 200], 200)
