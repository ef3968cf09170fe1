"""Eight chat templates in the styles that open models use, and a tokenizer folder for each."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import tokenizers
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHATML: Final = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED: Final = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}{% else %}"
    "{{ m.content }}<|im_end|>{% endif %}\n{% endfor %}"
)
BRACKETS: Final = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %} {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
)
HEADERS: Final = (
    "{{ bos_token }}{% for m in messages %}<|header|>{{ m.role }}<|end|>\n\n{{ m.content | trim }}"
    "<|turn|>{% endfor %}{% if add_generation_prompt %}<|header|>assistant<|end|>\n\n{% endif %}"
)
TURNS: Final = (
    "{{ bos_token }}{% for m in messages %}<|turn|>"
    "{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>model\n{% endif %}"
)
NAMES: Final = (
    "{% for m in messages %}{% if m.role == 'user' %}USER: {{ m.content }} "
    "{% else %}ASSISTANT: {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
ANGLES: Final = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
SECTIONS: Final = (
    "{% for m in messages %}{% if m.role == 'user' %}### Instruction:\n{{ m.content }}\n\n"
    "{% else %}### Response:\n{{ m.content }}{{ eos_token }}\n\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}### Response:\n{% endif %}"
)
CALLING: Final = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
    "<|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.content is not none %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function | tojson }}</call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Writes tools, and calls of them."""
LAST_ALONE: Final = (
    "{% for m in messages %}{{ '* ' if loop.last else '- ' }}{{ m.content }}\n{% endfor %}"
)
"""Writes the last message in another way than those before."""
TEMPLATES: Final[Mapping[str, str]] = {
    "chatml": CHATML,
    "marked": MARKED,
    "brackets": BRACKETS,
    "headers": HEADERS,
    "turns": TURNS,
    "names": NAMES,
    "angles": ANGLES,
    "sections": SECTIONS,
}
_SPECIAL: Final = ["<|im_start|>", "<|im_end|>", "<|header|>", "<|turn|>", "<|end|>", "<s>", "</s>"]


def save_tokenizer(folder: Path, template: str | None) -> Path:
    """A folder whose tokenizer has a token for each byte, and those of the templates."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({char: n for n, char in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(_SPECIAL)
    saved = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", chat_template=template
    )
    saved.save_pretrained(folder)
    return folder
