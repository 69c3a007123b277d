"""Chat templates for tests, in the manners that models' own templates have."""

from __future__ import annotations

SMOLLM = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nDefault rules<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

HERMES = (
    "{%- if tools %}<|im_start|>system\n"
    "{%- for tool in tools %}{{ '\n' + (tool | tojson) }}{% endfor %}<|im_end|>\n{% endif %}"
    "{%- for m in messages %}"
    "{{- '<|im_start|>' + ('user' if m.role == 'tool' else m.role) + '\n' }}"
    "{%- if m.role == 'tool' %}{{ '<tool_response>\n' + m.content + '\n</tool_response>' }}"
    "{%- elif m.content %}{{ m.content }}{% endif %}"
    "{%- for call in m.tool_calls or [] %}"
    '{{- \'<tool_call>\n{"name": "\' + call.function.name + \'", "arguments": \' }}'
    "{{- (call.function.arguments | tojson) + '}\n</tool_call>' }}{% endfor %}"
    "{{- '<|im_end|>\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

STRING_ARGUMENTS = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' + (m.content or '') }}"
    "{%- for call in m.tool_calls or [] %}"
    "{{- call['function']['name'] + ' ' + call['function']['arguments'] }}{% endfor %}"
    "{{- '<|im_end|>\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

ALTERNATING = (
    "{% for m in messages %}"
    "{% if m.role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must alternate user/assistant') }}{% endif %}"
    "{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content + '<|im_end|>' }}{% endif %}{% endfor %}"
)

# Reasoning is kept for the last answer only, as many thinking models do.
THINKING = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{%- if m.role == 'assistant' and loop.last %}"
    "{{- '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}{% endif %}"
    "{{- m.content + '<|im_end|>\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Tool call ids must have nine letters or digits, as Mistral's templates demand.
SHORT_IDS = (
    "{%- for m in messages %}"
    "{%- if m.role == 'tool' %}{%- if m.tool_call_id | length != 9 %}"
    "{{ raise_exception('ids must have length 9') }}{% endif %}"
    "{{- '[RESULT]' + m.tool_call_id + ' ' + m.content + '[/RESULT]' }}"
    "{%- elif m.tool_calls %}{%- for call in m.tool_calls %}"
    "{%- if call.id | length != 9 %}{{ raise_exception('ids must have length 9') }}{% endif %}"
    "{{- '[CALL]' + call.function.name + (call.function.arguments | tojson) + call.id }}"
    "{%- endfor %}{{- '<|im_end|>' }}"
    "{%- elif m.role == 'user' %}{{- '[INST]' + m.content + '[/INST]' }}"
    "{%- else %}{{- m.content + '<|im_end|>' }}{% endif %}{% endfor %}"
)

# The generation prompt opens a thought that the finished message does not show.
OPEN_THOUGHT = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\n' }}"
    "{{- m.content + '<|im_end|>\n' }}{% endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}"
)
