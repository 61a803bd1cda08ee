"""Secrets are recognised by name and by shape, and nothing else is touched."""

import pytest

from rldbg.core import REDACTED, is_secret_name, redact, redact_text


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "WANDB_API_KEY",
        "password",
        "db_password",
        "AWS_SECRET_ACCESS_KEY",
        "X-API-Key",
        "Authorization",
        "authToken",
        "private_key",
        "RAY_AUTH_TOKEN",
        "OPENAI_KEY",
    ],
)
def test_names_of_secrets(name):
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "max_tokens",
        "tokens",
        "token_ids",
        "eos_token",
        "pad_token_id",
        "num_key_value_heads",
        "key",
        "keyboard",
        "loss_agg_mode",
        "target_tokens",
        "token_mean",
        "monkey",
        "RAY_AUTH_MODE",
        "author",
    ],
)
def test_names_that_only_look_like_secrets(name):
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "secret",
    [
        "hf_" + "a" * 34,
        "sk-" + "A1b2" * 8,
        "ghp_" + "x" * 36,
        "AKIA" + "A" * 16,
        "tml-" + "z" * 20,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
        "-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----",
    ],
)
def test_shapes_of_secrets_anywhere_in_a_text(secret):
    assert redact_text(f"before {secret} after") == f"before {REDACTED} after"


def test_free_text_keeps_what_is_no_secret():
    text = "step 3: 4096 tokens, token mean 0.5, key=value http://host:8000/x"
    assert redact_text(text) == text


def test_assignments_urls_and_headers_in_text():
    assert redact_text("export WANDB_API_KEY=abc123") == f"export WANDB_API_KEY={REDACTED}"
    assert redact_text("curl --token=abc123 x") == f"curl --token={REDACTED} x"
    assert redact_text('{"api_key": "abc"}') == f'{{"api_key": "{REDACTED}"}}'
    assert redact_text("curl --token abc123 x") == f"curl --token {REDACTED} x"
    assert redact_text("http://user:pa55@host/") == f"http://user:{REDACTED}@host/"
    assert redact_text("Authorization: Bearer abcdefghijkl").endswith(REDACTED)


def test_nested_data_keeps_its_shape():
    data = {
        "env": {"HF_TOKEN": "x", "HOME": "/root"},
        "argv": ["--api-key", "abc", "--steps", "3"],
        "n": 3,
        "token": None,
    }
    clean = redact(data)
    assert clean == {
        "env": {"HF_TOKEN": REDACTED, "HOME": "/root"},
        "argv": ["--api-key", REDACTED, "--steps", "3"],
        "n": 3,
        "token": None,
    }
    assert data["env"]["HF_TOKEN"] == "x"


def test_endless_words_take_linear_time():
    assert redact_text("a" * 2_000_000 + "-" * 100_000).startswith("aaa")
