"""How big and how fast is one simulated engine, and where does each number come from?

The time of one engine step is linear in what the step does:

    step_s = base
           + admitted requests        * per_request
           + their prompt tokens      * per_prompt_token          (cached ones too: tokenising, copying)
           + prefill tokens computed  * per_prefill_token
           + prefill tokens * context * per_prefill_token_context (attention of the prefill)
           + sequences decoded        * per_decode_seq
           + their context tokens     * per_decode_context_token  (reading their KV cache)

and the whole is multiplied by the engine's slow factor and by a seeded jitter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Limits and step times of one engine. Raises ValueError when it could not run its own longest request.

    Defaults of the limits are vLLM's own (block size 16, 256 sequences, 8,192 tokens a step); the times have no
    default, use a preset or give all that matter to you.
    """

    base_step_s: float  # every step, however small
    per_prefill_token_s: float  # a prompt token computed (not cached)
    per_decode_seq_s: float  # a sequence that gets one more token
    per_prefill_token_context_s: float = 0.0  # a prefill token times a token it attends to
    per_decode_context_token_s: float = 0.0  # a token of context read by a decode
    per_request_s: float = 0.0  # a request admitted in this step
    per_prompt_token_s: float = 0.0  # a prompt token, cached or not, of a request admitted in this step
    block_size_tokens: int = 16
    num_gpu_blocks: int = 25_000  # as on vLLM's metrics page: one of them is the null block, never handed out
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    max_model_len: int = 32_768  # tokens of prompt and answer together
    reserve_full_prompt: bool = True  # admit only if all of the prompt fits now (vLLM: scheduler_reserve_full_isl)
    enable_prefix_caching: bool = True
    jitter_ratio: float = 0.0  # each step takes between 1 - jitter and 1 + jitter of its time

    def __post_init__(self) -> None:
        for name in ("block_size_tokens", "max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: {getattr(self, name)} is below 1")
        if self.usable_blocks * self.block_size_tokens < self.max_model_len:
            raise ValueError(
                f"num_gpu_blocks: {self.num_gpu_blocks} blocks of {self.block_size_tokens} tokens (one is the null "
                f"block) hold less than max_model_len = {self.max_model_len}; lower max_model_len or add blocks"
            )
        if not 0.0 <= self.jitter_ratio < 1.0:
            raise ValueError(f"jitter_ratio: {self.jitter_ratio} is outside 0 <= jitter < 1")
        if self.base_step_s <= 0.0:
            raise ValueError(f"base_step_s: {self.base_step_s} must be above 0, or time would stand still")

    @property
    def usable_blocks(self) -> int:
        """Blocks that requests can hold: all but the null block."""
        return self.num_gpu_blocks - 1

    def slowed(self, factor: float) -> EngineSpec:
        """The same engine on hardware `factor` times slower (0.5: twice as fast)."""
        return replace(
            self,
            base_step_s=self.base_step_s * factor,
            per_prefill_token_s=self.per_prefill_token_s * factor,
            per_decode_seq_s=self.per_decode_seq_s * factor,
            per_prefill_token_context_s=self.per_prefill_token_context_s * factor,
            per_decode_context_token_s=self.per_decode_context_token_s * factor,
            per_request_s=self.per_request_s * factor,
            per_prompt_token_s=self.per_prompt_token_s * factor,
        )


CPU_TINY = EngineSpec(
    # Measured on vLLM 0.32 with a tiny model on one CPU core: first token of a 3,000-token prompt after 130 ms cold and
    # 20 ms warm, of a 5,500-token prompt after 352 ms cold and 29 ms warm; a decode step 3 to 5 ms.
    # Decode: 4 ms, the middle of 3 to 5; how it splits between step and sequence was not measured: 3.9 + 0.1.
    base_step_s=0.0039,
    per_decode_seq_s=0.0001,
    # Cold minus warm is what the cached part costs to compute, n = 2,976 and 5,472 tokens (down to whole blocks of 32,
    # the last block is always recomputed): n a + n^2/2 b = 110 ms and 323 ms, so b = 1.77e-8 s and a = 10.6 us.
    per_prefill_token_s=10.6e-6,
    per_prefill_token_context_s=1.77e-8,
    # Warm, less the base step and the recomputed last block (24 or 28 tokens), grows from 14.6 to 22.1 ms over 2,500
    # tokens: 3 us a prompt token, and 5.6 ms a request.
    per_prompt_token_s=3.0e-6,
    per_request_s=0.0056,
    block_size_tokens=32,
    num_gpu_blocks=32_768,
    max_num_seqs=128,
    max_num_batched_tokens=8192,
    max_model_len=8192,
)

A100_8B = EngineSpec(
    # An assumption, not a measurement: an 8-billion-parameter model with grouped-query attention (32 layers, 8 KV heads
    # of 128) in 16 bits on a card with 80 GB, 2.0 TB/s and 312 TFLOP/s, run at 80 % of the bandwidth and 50 % of the
    # arithmetic.
    # Base: the weights are read once a step, 16 GB / 1.6 TB/s = 10 ms.
    base_step_s=0.010,
    # 2 x 8e9 FLOP a token / 156 TFLOP/s = 103 us.
    per_prefill_token_s=103e-6,
    # Attention: 4 x 4,096 x 32 layers = 0.52 MFLOP a token and token of context / 156 TFLOP/s = 3.4 ns.
    per_prefill_token_context_s=3.4e-9,
    # Sampling and bookkeeping of one sequence: assumed 50 us.
    per_decode_seq_s=50e-6,
    # KV cache: 2 x 32 x 8 x 128 x 2 bytes = 131 kB a token / 1.6 TB/s = 82 ns.
    per_decode_context_token_s=82e-9,
    # Front end (HTTP, tokeniser): assumed 1 ms a request and 0.5 us a token, charged to the step that admits it.
    per_request_s=0.001,
    per_prompt_token_s=0.5e-6,
    # 80 GB x 0.9 less weights and 3.5 GB of activations leaves 52 GB / 131 kB = 400,000 tokens = 25,000 blocks of 16.
    num_gpu_blocks=25_000,
)

INSTANT = EngineSpec(
    # No hardware: times near zero, to measure what stands in front of the engine. Enough room that nothing queues.
    base_step_s=1e-6,
    per_prefill_token_s=1e-10,
    per_decode_seq_s=1e-9,
    num_gpu_blocks=1_000_001,
    max_num_seqs=4096,
    max_num_batched_tokens=1_000_000,
    max_model_len=1_000_000,
)

PRESETS: dict[str, EngineSpec] = {"a100-8b": A100_8B, "cpu-tiny": CPU_TINY, "instant": INSTANT}
