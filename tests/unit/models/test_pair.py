from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers

from trtspec.base.errors import ModelError, PairError
from trtspec.base.findings import Finding, Severity, errors, note
from trtspec.models.pair import Member, compare, read_member, refuse

SPECIALS = ("<|begin|>", "<|end|>", "<|pad|>")


@pytest.fixture
def sides(model_folder: Callable[..., Path]) -> Callable[..., tuple[Member, Member]]:
    """A target and a draft, read from folders; keywords `target` and `draft` change one of them."""

    def build(
        target: dict[str, object] | None = None, draft: dict[str, object] | None = None
    ) -> tuple[Member, Member]:
        sizes = {"target": 32, "draft": 16}
        changes = {"target": target or {}, "draft": draft or {}}
        folders = {
            role: model_folder(role, **{"hidden_size": sizes[role], **changes[role]}) for role in sizes
        }
        return read_member(folders["target"]), read_member(folders["draft"])

    return build


def the_one(findings: list[Finding]) -> Finding:
    assert len(findings) == 1, findings
    return findings[0]


def refused(findings: list[Finding]) -> list[str]:
    return [finding.subject for finding in errors(findings)]


def test_a_pair_that_fits_has_no_findings(sides: Callable[..., tuple[Member, Member]]) -> None:
    assert compare(*sides(), max_seq_len=256) == []


class TestIds:
    def test_an_id_that_means_other_bytes_is_refused(
        self, sides: Callable[..., tuple[Member, Member]], byte_level: Callable[..., Tokenizer]
    ) -> None:
        other = byte_level(text=["while True:\n    pass\n", "zzzz zzzz"])
        target, draft = sides(draft={"tokenizer": other})
        findings = compare(target, draft)
        first = findings[0]
        assert (first.subject, first.severity) == ("token ids", Severity.ERROR)
        differing = [i for i in range(300) if target.tokenizer.tokens.get(i) != draft.tokenizer.tokens.get(i)]
        assert f"{differing[0]} is {target.tokenizer.tokens[differing[0]]!r}" in first.problem
        with pytest.raises(PairError, match="token ids") as error:
            refuse("recipe.yaml", findings, can_translate=True)
        assert error.value.subject == "recipe.yaml"
        assert "same tokenizer" in str(error.value.repair)

    def test_ids_of_other_bytes_are_translated_where_the_recipe_says_so(
        self, sides: Callable[..., tuple[Member, Member]], byte_level: Callable[..., Tokenizer]
    ) -> None:
        other = byte_level(text=["while True:\n    pass\n", "zzzz zzzz"], specials=("<s>", "</s>", "<pad>"))
        target, draft = sides(draft={"tokenizer": other, "eos_token_id": 2})
        with pytest.raises(PairError) as error:
            refuse("recipe.yaml", compare(target, draft), can_translate=True)
        assert "method: {kind: draft_model, use_heterogeneous_vocab: true}" in str(error.value.repair)
        with pytest.raises(PairError) as error:
            refuse("recipe.yaml", compare(target, draft), can_translate=False)
        assert "use_heterogeneous_vocab" not in str(error.value.repair)
        findings = {finding.subject: finding for finding in compare(target, draft, translates=True)}
        assert refused([*findings.values()]) == []
        common = set(target.tokenizer.tokens.values()) & set(draft.tokenizer.tokens.values())
        assert findings["vocabularies"].problem == (
            f"{len(common)} of the target's 300 tokens are among the draft's {draft.tokenizer.size}"
        )
        assert 256 <= len(common) < 300

    def test_the_same_vocabulary_needs_no_translation(
        self, sides: Callable[..., tuple[Member, Member]]
    ) -> None:
        findings = {finding.subject: finding for finding in compare(*sides(), translates=True)}
        assert findings["vocabularies"].effect == "translation only takes time: leave it out"

    def test_a_translated_draft_must_have_its_own_tokens(
        self, sides: Callable[..., tuple[Member, Member]]
    ) -> None:
        target, draft = sides(draft={"vocab_size": 270})
        assert refused(compare(target, draft, translates=True)) == ["vocabulary"]

    def test_same_bytes_written_otherwise_are_the_same_token(
        self, sides: Callable[..., tuple[Member, Member]], byte_level: Callable[..., Tokenizer]
    ) -> None:
        trained, added = byte_level(size=260, text=["Ω" * 9]), byte_level(size=259)
        added.add_tokens(["Ω"])
        assert trained.id_to_token(259) == "Î©"  # UTF-8 in the letters of byte-level BPE
        assert added.id_to_token(259) == "Ω"
        findings = compare(*sides(target={"tokenizer": trained}, draft={"tokenizer": added}))
        assert [finding.subject for finding in findings] == ["added tokens", "merges"]
        assert refused(findings) == []

    def test_a_renamed_special_token_costs_acceptance_alone(
        self, sides: Callable[..., tuple[Member, Member]], byte_level: Callable[..., Tokenizer]
    ) -> None:
        other = byte_level(specials=("<|begin|>", "<|end|>", "<|reserved|>"))
        finding = the_one(compare(*sides(draft={"tokenizer": other})))
        assert (finding.subject, finding.severity) == ("special tokens", Severity.NOTE)
        assert "2 is b'<|pad|>' and b'<|reserved|>'" in finding.problem

    def test_an_end_token_with_another_meaning_is_refused(
        self, sides: Callable[..., tuple[Member, Member]], byte_level: Callable[..., Tokenizer]
    ) -> None:
        other = byte_level(specials=("<|begin|>", "<|turn|>", "<|pad|>"))
        assert refused(compare(*sides(draft={"tokenizer": other}))) == ["end tokens"]

    def test_flags_of_an_added_token(
        self, sides: Callable[..., tuple[Member, Member]], byte_level: Callable[..., Tokenizer]
    ) -> None:
        plain, stripped = byte_level(), byte_level()
        plain.add_tokens([AddedToken("<x>")])
        stripped.add_tokens([AddedToken("<x>", lstrip=True)])
        finding = the_one(compare(*sides(target={"tokenizer": plain}, draft={"tokenizer": stripped})))
        assert finding.subject == "added tokens"
        assert "1 token added or special in only one of the two" in finding.problem
        assert "b'<x>'" in finding.problem


class TestVocabulary:
    def test_padding_is_listed_as_harmless(self, sides: Callable[..., tuple[Member, Member]]) -> None:
        finding = the_one(compare(*sides(target={"vocab_size": 384})))
        assert (finding.subject, finding.severity) == ("padded vocabulary", Severity.NOTE)
        assert finding.problem == "384 rows in the target's embedding, 320 in the draft's"
        assert finding.effect is not None
        assert finding.effect.startswith("none for token matching")

    def test_padding_of_the_draft_beyond_the_target_cuts_drafts(
        self, sides: Callable[..., tuple[Member, Member]]
    ) -> None:
        finding = the_one(compare(*sides(draft={"vocab_size": 384})))
        assert finding.effect == "a draft ends before an id that the target lacks"

    def test_more_tokens_in_the_target_than_the_draft_has_rows(
        self, sides: Callable[..., tuple[Member, Member]], byte_level: Callable[..., Tokenizer]
    ) -> None:
        more = byte_level()
        more.add_tokens([f"<extra {n}>" for n in range(30)])
        findings = compare(*sides(target={"tokenizer": more, "vocab_size": 384}))
        assert refused(findings) == ["vocabulary"]
        size = byte_level().get_vocab_size()
        assert f"{size + 30 - 320} ids of the target's tokenizer, such as 320" in findings[0].problem

    def test_more_tokens_in_the_draft_than_the_target_has_rows(
        self, sides: Callable[..., tuple[Member, Member]], byte_level: Callable[..., Tokenizer]
    ) -> None:
        more = byte_level()
        more.add_tokens([f"<extra {n}>" for n in range(30)])
        findings = compare(*sides(draft={"tokenizer": more, "vocab_size": 384}))
        assert refused(findings) == ["vocabulary"]
        assert findings[0].effect == "the target cannot verify them"

    @pytest.mark.parametrize("rows", [{}, {"vocab_size": 384}])
    def test_an_id_that_no_prompt_needs_is_a_note(
        self,
        sides: Callable[..., tuple[Member, Member]],
        byte_level: Callable[..., Tokenizer],
        rows: dict[str, int],
    ) -> None:
        """Gemma 3's tokenizer has a marker of images after its 262,144 rows, of which its larger models have
        some more."""
        tokenizer = byte_level(size=319)
        tokenizer.add_tokens([f"w{n}" for n in range(320 - tokenizer.get_vocab_size())])
        tokenizer.add_special_tokens([AddedToken("<image_soft_token>", special=True)])
        assert tokenizer.token_to_id("<image_soft_token>") == 320
        findings = compare(*sides(target={"tokenizer": tokenizer, **rows}, draft={"tokenizer": tokenizer}))
        assert refused(findings) == []
        said = [found for found in findings if "320 (b'<image_soft_token>')" in found.problem]
        assert {found.severity for found in said} == {Severity.NOTE}
        own = [found for found in said if "past its own embedding of 320 rows" in found.problem]
        assert len(own) == (not rows)

    def test_tokens_that_one_has_and_the_other_could_learn(
        self, sides: Callable[..., tuple[Member, Member]], byte_level: Callable[..., Tokenizer]
    ) -> None:
        more = byte_level()
        more.add_special_tokens([AddedToken("<new>", special=True)])
        finding = the_one(compare(*sides(target={"tokenizer": more})))
        size = byte_level().get_vocab_size()
        assert finding.problem == f"1 id only in the target's, such as {size} (b'<new>')"
        assert finding.severity is Severity.NOTE

    def test_a_tokenizer_with_more_ids_than_its_own_model(
        self, sides: Callable[..., tuple[Member, Member]]
    ) -> None:
        findings = compare(*sides(target={"vocab_size": 270}))
        assert "vocabulary" in refused(findings)
        with pytest.raises(PairError) as error:
            refuse("recipe.yaml", findings, can_translate=True)
        assert error.value.repair == "use the tokenizer that belongs to the target"


class TestEnds:
    def test_a_further_end_of_one_of_them(self, sides: Callable[..., tuple[Member, Member]]) -> None:
        finding = the_one(compare(*sides(target={"eos_token_id": [1, 2]})))
        assert (finding.problem, finding.severity) == ("1, 2 in the target, 1 in the draft", Severity.NOTE)

    def test_no_end_at_all(self, sides: Callable[..., tuple[Member, Member]]) -> None:
        findings = compare(*sides(target={"eos_token_id": None}, draft={"eos_token_id": None}))
        assert the_one(findings).effect == "only max_tokens and stop words end a text"

    def test_configuration_and_tokenizer_disagree(self, sides: Callable[..., tuple[Member, Member]]) -> None:
        findings = compare(*sides(target={"eos_token_id": 2}, draft={"eos_token_id": 2}))
        assert the_one(findings).problem == "the target's configuration has 2, its tokenizer 1"

    def test_bos_and_pad(self, sides: Callable[..., tuple[Member, Member]]) -> None:
        findings = compare(*sides(draft={"bos_token_id": None, "pad_token_id": 1}))
        assert [(finding.subject, finding.severity) for finding in findings] == [
            ("bos token", Severity.NOTE),
            ("pad token", Severity.NOTE),
        ]

    def test_an_end_past_the_embedding_is_left_out(self, sides: Callable[..., tuple[Member, Member]]) -> None:
        target, draft = sides(target={"eos_token_id": [1, 999]})
        assert target.source.end_ids == (1,)
        finding = the_one(compare(target, draft))
        assert (finding.severity, finding.effect) == (Severity.NOTE, "left out: the model cannot say them")
        assert finding.problem == "999 in the target's configuration, past its embedding of 320 rows"


class TestCutting:
    def test_stages_are_compared_one_by_one(
        self, sides: Callable[..., tuple[Member, Member]], byte_level: Callable[..., Tokenizer]
    ) -> None:
        other = byte_level()
        other.normalizer = normalizers.NFC()
        other.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        findings = compare(*sides(draft={"tokenizer": other}))
        assert [finding.subject for finding in findings] == ["normalizer", "pre_tokenizer"]
        assert not refused(findings)

    def test_chat_template(self, sides: Callable[..., tuple[Member, Member]]) -> None:
        finding = the_one(compare(*sides(target={"settings": {"chat_template": "{{ messages }}"}})))
        assert finding == note("chat template", "the draft has none", effect="the target's is used")


class TestSizes:
    def test_a_draft_larger_than_the_target_is_refused(
        self, sides: Callable[..., tuple[Member, Member]]
    ) -> None:
        findings = compare(*sides(target={"hidden_size": 8}))
        assert refused(findings) == ["size"]
        with pytest.raises(PairError) as error:
            refuse("recipe.yaml", findings, can_translate=True)
        assert error.value.repair == "swap target and draft"

    def test_a_draft_of_the_same_size_is_listed(self, sides: Callable[..., tuple[Member, Member]]) -> None:
        finding = the_one(compare(*sides(draft={"hidden_size": 32})))
        assert (finding.subject, finding.severity) == ("size", Severity.NOTE)

    def test_texts_longer_than_the_target_was_made_for(
        self, sides: Callable[..., tuple[Member, Member]]
    ) -> None:
        target, draft = sides(draft={"max_position_embeddings": 128})
        assert refused(compare(target, draft, max_seq_len=257)) == ["context length"]
        assert compare(target, draft, max_seq_len=128) == []
        finding = the_one(compare(target, draft, max_seq_len=256))
        assert finding.problem == "texts have up to 256 tokens, but the draft supports 128"

    @pytest.mark.parametrize(("window", "told"), [(None, False), (128, True), (256, False)])
    def test_texts_longer_than_a_sliding_window(
        self, sides: Callable[..., tuple[Member, Member]], window: int | None, told: bool
    ) -> None:
        mistral = {
            "architectures": ["MistralForCausalLM"],
            "model_type": "mistral",
            "sliding_window": window,
        }
        findings = compare(*sides(target=mistral), max_seq_len=256)
        said = [finding.effect for finding in findings if finding.subject == "sliding window"]
        assert len(said) == told
        assert all("may reuse no KV cache" in str(effect) for effect in said)


@pytest.mark.parametrize(("longest", "told"), [(100, False), (101, True)])
def test_texts_whose_positions_turn_otherwise(
    sides: Callable[..., tuple[Member, Member]], longest: int, told: bool
) -> None:
    phi = {
        "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "rms_norm_eps": 1e-5,
        "original_max_position_embeddings": 100,
        "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8},
    }  # fmt: skip
    found = {finding.subject: finding for finding in compare(*sides(target=phi), max_seq_len=longest)}
    assert ("positions" in found) == told
    assert not told or found["positions"].severity is Severity.NOTE


def test_refuse_counts_what_else_is_wrong(sides: Callable[..., tuple[Member, Member]]) -> None:
    findings = compare(*sides(target={"hidden_size": 8}), max_seq_len=1000)
    assert [finding.severity.value for finding in findings] == ["error", "error", "note"]
    with pytest.raises(PairError, match=r"\(and 1 more\)"):
        refuse("recipe.yaml", findings, can_translate=True)


def test_an_unknown_family_is_a_model_error(model_folder: Callable[..., Path]) -> None:
    with pytest.raises(ModelError, match="MambaForCausalLM"):
        read_member(model_folder("model", architectures=["MambaForCausalLM"]))
    served = read_member(model_folder("served", architectures=["MambaForCausalLM"]), for_engines=False)
    assert compare(served, served) == [size for size in compare(served, served) if size.subject == "size"]


def test_a_served_model_may_have_windows_that_no_engine_has(model_folder: Callable[..., Path]) -> None:
    mixed = {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral",
        "sliding_window": 8, "layer_types": ["full_attention"],
    }  # fmt: skip
    folder = model_folder("mixed", **mixed)
    with pytest.raises(ModelError, match="0 of 1 layers have a sliding window"):
        read_member(folder)
    served = read_member(folder, for_engines=False)
    assert [finding.subject for finding in compare(served, served)] == ["size"]
