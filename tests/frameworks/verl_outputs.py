"""A user's agent loop for verl that gives one sequence per turn: an answer with an even digit is asked about again."""

from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop


class OnePerTurn(SingleTurnAgentLoop):
    async def run(self, sampling_params, **kwargs):
        messages, outputs = list(kwargs.pop("raw_prompt")), []
        while len(outputs) < 3:
            outputs.append(await super().run(sampling_params, raw_prompt=messages, **kwargs))
            answer = self.tokenizer.decode(outputs[-1].response_ids, skip_special_tokens=True)
            if not any(character in "02468" for character in answer):
                break
            messages = [*messages, {"role": "assistant", "content": answer}, {"role": "user", "content": "+1="}]
        return outputs
