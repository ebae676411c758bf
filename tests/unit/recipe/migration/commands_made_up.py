"""Command lines of kinds that people arrive with, and that stand on no page as they are."""

from __future__ import annotations

from tests.unit.recipe.migration.commands_of_others import VLLM, Case

MADE = (
    Case(
        "quotes that the shell ate",
        "",
        "vllm serve org/big --speculative-config {method: ngram, num_speculative_tokens: 5, "
        "prompt_lookup_max: 4}",
        VLLM,
        "org/big",
        "ngram",
        longest=5,
        option=("prompt_lookup_max", 4),
    ),
    Case(
        "quotes that the shell ate, without blanks",
        "",
        "vllm serve org/big --spec-tokens 3 --speculative-config {method:draft_model,model:org/small} -tp 2",
        VLLM,
        "org/big",
        "draft_model",
        draft="org/small",
        longest=3,
    ),
    Case(
        "quotes of a shell in a shell",
        "",
        """bash -lc "vllm serve org/big --speculative-config '{\\"method\\": \\"suffix\\"}'" """,
        VLLM,
        "org/big",
        "suffix",
        longest=24,
    ),
    Case(
        "lines without backslashes",
        "",
        "$ vllm serve org/big\n    --spec-model org/small\n    # the longest\n    --spec-tokens 6\n",
        VLLM,
        "org/big",
        "draft_model",
        draft="org/small",
        longest=6,
    ),
    Case(
        "flags in a variable",
        "",
        "DRAFTS='--spec-model org/small --spec-tokens 4'\nexport MODEL=org/big\n"
        "vllm serve ${MODEL} $DRAFTS\n",
        VLLM,
        "org/big",
        "draft_model",
        draft="org/small",
        longest=4,
    ),
    Case(
        "docker run with folders",
        "",
        "docker run --gpus all -v /data/models:/models:ro -e VLLM_LOGGING_LEVEL=DEBUG "
        "--mount type=bind,source=/data/heads,target=/heads vllm/vllm-openai:v0.33.0 "
        "--model /models/big --spec-method eagle3 --spec-model /heads/one --spec-tokens 2",
        VLLM,
        "/data/models/big",
        "eagle3",
        draft="/data/heads/one",
        longest=2,
    ),
    Case(
        "--config FILE",
        "",
        "cat <<EOF > config.yaml\nmodel: org/other\ntensor-parallel-size: 2\nenforce-eager: true\n"
        "speculative-config: {method: ngram, num_speculative_tokens: 7}\nEOF\n"
        "vllm serve org/big --config config.yaml",
        VLLM,
        "org/big",
        "ngram",
        longest=7,
    ),
)
