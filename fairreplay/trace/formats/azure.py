"""Azure LLM inference traces 2023 and 2024 (Azure/AzurePublicDataset): arrival and lengths, nothing else.

2023 writes times without zone and 7 digits, 2024 with a zone and 6 digits or none. The type is only in the file name.
"""

from __future__ import annotations

from fairreplay.trace.fields import Format, Tokens, Wall

AZURE = Format(
    name="azure",
    containers=("csv",),
    needs=("TIMESTAMP", "ContextTokens", "GeneratedTokens"),
    columns={
        "arrived_at": (Wall("TIMESTAMP"),),
        "prompt_tokens": (Tokens("ContextTokens"),),
        "output_tokens": (Tokens("GeneratedTokens"),),
    },
)
