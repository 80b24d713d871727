#!/usr/bin/env python3
# Compares logits and generated tokens of examples/gpt with those of Hugging Face's transformers, for
# GPT-2 and Llama.
# SPDX-License-Identifier: Apache-2.0
"""Usage: transformers_test.py PROGRAM [Transformers.test_NAME]    needs a Python with torch and transformers"""
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch
import transformers
from safetensors.torch import load_file, save_file

PROGRAM = os.path.abspath(sys.argv.pop(1))
TOLERANCE = 1e-4


class Transformers(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(3)
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.theirs, self.work = (pathlib.Path(self.folder.name) / name for name in ("theirs", "work"))
        (self.work / "saved").mkdir(parents=True)

    def check(self, model, rows, steps):
        """Compares `model` after adding noise to its weights, so that logits differ more than those of a new model."""
        model.eval()
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(torch.randn_like(weight) * 0.05)
        model.save_pretrained(self.theirs)
        tokens = torch.randint(model.config.vocab_size, (rows, steps))
        save_file({"tokens": tokens}, self.work / "tokens.safetensors")
        subprocess.run([PROGRAM, self.theirs, self.work], check=True, timeout=600)
        results = load_file(self.work / "results.safetensors")
        with torch.no_grad():
            expected = model(tokens).logits
            generated = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=12, do_sample=False,
                                       pad_token_id=0, eos_token_id=None)
            self.assertGreater(expected.std().item(), 0.3)
            apart = (results["logits"] - expected).abs().max().item()
            print(f"{type(model).__name__}: {sum(p.numel() for p in model.parameters()):,} parameters; logits have a standard deviation of "
                  f"{expected.std().item():.2f} and differ by at most {apart:.2g}")
            self.assertLess(apart, TOLERANCE)
            self.assertTrue(torch.equal(results["generated"][:, -12:], generated[:, -12:]), (results["generated"], generated))
            # transformers must be able to load what examples/gpt saves.
            again, info = type(model).from_pretrained(self.work / "saved", output_loading_info=True)
            self.assertFalse(info["missing_keys"] or info["unexpected_keys"] or info["mismatched_keys"], info)
            self.assertTrue(torch.equal(again.eval()(tokens).logits, expected))

    def test_gpt2_with_published_shapes_matches_transformers(self):
        self.check(transformers.GPT2LMHeadModel(transformers.GPT2Config()), 2, 40)

    def test_gpt2_with_custom_sizes_matches_transformers(self):
        self.check(transformers.GPT2LMHeadModel(transformers.GPT2Config(
            vocab_size=97, n_positions=48, n_embd=60, n_layer=3, n_head=5, n_inner=100, layer_norm_epsilon=1e-3)), 3, 36)

    def test_llama_with_stories15m_shapes_matches_transformers(self):
        self.check(transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=32000, hidden_size=288, intermediate_size=768, num_hidden_layers=6, num_attention_heads=6,
            max_position_embeddings=256, tie_word_embeddings=True)), 2, 60)

    def test_llama_with_grouped_queries_and_untied_output_matches_transformers(self):
        self.check(transformers.LlamaForCausalLM(transformers.LlamaConfig(
            vocab_size=301, hidden_size=128, intermediate_size=224, num_hidden_layers=4, num_attention_heads=8,
            num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-6, rope_theta=500000.0,
            tie_word_embeddings=False)), 3, 50)


if __name__ == "__main__":
    unittest.main()
