"""A LLaVA of the real class with random weights and a vocabulary of bytes, in the form of a public checkpoint."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {% for c in m['content'] %}"
    "{% if c['type'] == 'image' %}<image>{% else %}{{ c['text'] }}{% endif %}{% endfor %}{% endfor %}"
    "{% if add_generation_prompt %} assistant:{% endif %}"
)
SIZE_PX, PATCH = 16, 8
TOWER = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2}


def write_vlm(folder: Path, template: str | None = TEMPLATE) -> Path:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {name: id_ for id_, name in enumerate(["<pad>", "<s>", "</s>", "<image>"])}
    for letter in sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[letter] = len(vocabulary)
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, pad_token="<pad>", bos_token="<s>", eos_token="</s>", extra_special_tokens=["<image>"]
    )
    # By Pillow: the other image processors of transformers need torchvision.
    images = transformers.CLIPImageProcessorPil(
        size={"shortest_edge": SIZE_PX}, crop_size={"height": SIZE_PX, "width": SIZE_PX}
    )
    transformers.LlavaProcessor(
        image_processor=images,
        tokenizer=tokenizer,
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        chat_template=template,
        num_additional_image_tokens=1,
    ).save_pretrained(folder)
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(
            **TOWER, num_hidden_layers=2, image_size=SIZE_PX, patch_size=PATCH, projection_dim=16
        ),
        text_config=transformers.LlamaConfig(
            **TOWER, vocab_size=len(vocabulary), num_hidden_layers=1, num_key_value_heads=2, **ids
        ),
        image_token_index=3,
        vision_feature_layer=-1,
    )
    torch.manual_seed(0)
    model = transformers.LlavaForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8)  # so that the answer depends on the image
        # Ends and letters are likely: a random network would write control characters without end.
        head = model.lm_head.weight
        for name, id_ in vocabulary.items():
            if not (name.isascii() and name.isalpha()) and name != "</s>":
                head[id_] = 0
    model.save_pretrained(folder)
    return folder
