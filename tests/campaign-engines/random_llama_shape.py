"""What vLLM's small model is like. Two KV heads, so that it has two workers."""

LAYERS, HEADS, KV_HEADS, HEAD_DIM = 2, 8, 2, 64
HIDDEN, INNER, WORDS = HEADS * HEAD_DIM, 1024, 2048
POSITIONS = 16384
