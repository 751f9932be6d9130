"""Ask a vision-language model on this machine, through transformers. B: questions. V: tokens of the vocabulary."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from tintype import rng
from tintype.data.image_sets import decode
from tintype.data.recaption.asking import Asking, Captioner, Pull, Question, Reply
from tintype.errors import UserError
from tintype.pretrained.hub import Checkpoint
from tintype.runtime.interrupt import Interrupt
from tintype.wording import again, option


@dataclass(frozen=True)
class Local(Captioner):
    checkpoint: Checkpoint
    asking: Asking
    device: torch.device
    batch: int = 8

    @property
    def where(self) -> str:
        return str(self.device)

    def identity(self) -> dict[str, str]:
        dtype = str(self._dtype).removeprefix("torch.")
        return {"backend": "transformers", "model": self.checkpoint.source, **self._version, "dtype": dtype}

    def check(self) -> None:
        if self._processor.chat_template is None:
            raise UserError(
                f"{self.checkpoint.words} has no chat template, so it cannot answer questions",
                "use a model trained to follow instructions",
            )
        assert self._model is not None

    def alive(self) -> bool:
        return True

    def replies(self, pull: Pull, interrupt: Interrupt) -> Iterator[Reply]:
        while interrupt.signal is None:
            questions: list[Question] = []
            while len(questions) < self.batch and (question := pull()) is not None:
                questions.append(question)
            if not questions:
                return
            yield from self._answer(questions)

    def _answer(self, questions: Sequence[Question]) -> list[Reply]:
        tokenizer = self._processor.tokenizer
        try:
            inputs = self._inputs(questions)
            length = inputs["input_ids"].shape[1]
            with torch.inference_mode():
                written = self._model.generate(
                    **inputs,
                    max_new_tokens=self.asking.max_tokens,
                    do_sample=False,
                    num_beams=1,
                    logits_processor=[_Dice(questions, self.asking, length)],
                    pad_token_id=tokenizer.pad_token_id,
                )
        except torch.OutOfMemoryError:
            raise UserError(
                f"{len(questions)} images in one batch do not fit into the memory of {self.device}",
                f"{again()} with a smaller {option('batch')} to resume",
            ) from None
        answers = written[:, length:].tolist()
        asked = inputs["attention_mask"].sum(1).tolist()
        return [self._reply(*one) for one in zip(questions, answers, asked, strict=True)]

    def _reply(self, question: Question, ids: list[int], asked: int) -> Reply:
        end = next((place for place, id_ in enumerate(ids) if id_ in self._ends), None)
        kept = ids[:end]
        text = self._processor.tokenizer.decode(kept, skip_special_tokens=True)
        count = len(kept) + (end is not None)
        return Reply(question, text, cut_off=end is None, input_tokens=asked, output_tokens=count)

    def _inputs(self, questions: Sequence[Question]) -> Any:
        content = [{"type": "image"}, {"type": "text", "text": self.asking.prompt}]
        text = self._processor.apply_chat_template(
            [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
        )
        images = [[Image.fromarray(decode(one.image).permute(1, 2, 0).contiguous().numpy())] for one in questions]
        inputs = self._processor(text=[text] * len(questions), images=images, padding=True, return_tensors="pt")
        return inputs.to(self.device, dtype=self._dtype)

    @property
    def _dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.device.type == "cuda" else torch.float32

    @cached_property
    def _version(self) -> dict[str, str]:
        """Return the version of the weights: the hash of a folder's files, or the commit on the Hugging Face hub."""
        folder = self.checkpoint.folder
        if folder is None and self.checkpoint.revision is None:
            raise UserError(
                f"{option('model', self.checkpoint.source)} is a repository on the hub, whose content may change",
                f"give {option('revision')} (a commit hash) too, or the path of a local folder; for a model on "
                f"a server, give {option('server')}",
            )
        if folder is None:
            commit = getattr(self.checkpoint.config(), "_commit_hash", None)
            return {"revision": str(commit or self.checkpoint.revision)}
        self.checkpoint.check_folder()
        total = hashlib.sha256()
        for file in sorted(folder.iterdir()):
            if file.is_file() and file.suffix in (".json", ".safetensors", ".jinja", ".txt", ".model"):
                with file.open("rb") as opened:
                    total.update(file.name.encode() + hashlib.file_digest(opened, "sha256").digest())
        return {"files_sha256": total.hexdigest()}

    @cached_property
    def _processor(self) -> Any:
        processor = self.checkpoint.image_text_processor()
        tokenizer = processor.tokenizer
        tokenizer.padding_side = "left"  # the answers begin where the questions end
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        return processor

    @cached_property
    def _model(self) -> Any:
        return self.checkpoint.image_text_model(self._dtype).to(self.device).eval()

    @cached_property
    def _ends(self) -> frozenset[int]:
        ends = self._model.generation_config.eos_token_id
        own = self._processor.tokenizer.eos_token_id
        return frozenset(ends if isinstance(ends, list) else [own if ends is None else ends])


class _Dice:
    """Sample tokens with the Gumbel-max trick: the argmax of logits / temperature + noise is a sample of the softmax.

    The noise is a function of the seed, the image, the attempt and the position in the answer. So the tokens sampled
    for an image do not depend on the other images of its batch. At temperature 0, decoding is greedy.
    """

    def __init__(self, questions: Sequence[Question], asking: Asking, length: int) -> None:
        self._keys = [int(question.key[:15], 16) for question in questions]
        self._attempts = [question.attempt for question in questions]
        self._asking, self._length = asking, length

    def __call__(self, input_ids: Tensor, logits_BV: Tensor) -> Tensor:
        place = input_ids.shape[1] - self._length
        drawn = logits_BV.to(torch.float32, copy=True)  # do not change the model's logits
        for attempt in set(self._attempts):
            temperature = self._asking.temperature_of(attempt)
            if temperature == 0.0:
                continue
            rows = [row for row, one in enumerate(self._attempts) if one == attempt]
            positions = torch.tensor([self._keys[row] for row in rows], device=drawn.device)
            stream = f"recaption/{attempt}/{place}"
            u = rng.uniform(self._asking.seed, stream, positions, (drawn.shape[1],)).clamp_min(2.0**-25)
            drawn[rows] = drawn[rows] / temperature - torch.log(-torch.log(u))
        return drawn
