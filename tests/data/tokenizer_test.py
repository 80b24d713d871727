#!/usr/bin/env python3
# Compares BytePairTokenizer with Hugging Face's tokenizers on 10,000 random texts, for several
# pre-tokenizers.
# SPDX-License-Identifier: Apache-2.0
"""Usage: tokenizer_test.py --install                makes a virtual environment with tokenizers in .venv/tokenizers
       tokenizer_test.py --install-if-possible    same as --install, but succeeds, with a message, if it cannot install
       tokenizer_test.py TOKENIZE_TEXTS           runs the tests in that environment; TOKENIZE_TEXTS is the program of tokenize_texts.cc"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile
import unicodedata
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from support import package_environment  # noqa: E402

# The package's dependencies are not installed, because it needs them only to download tokenizers.
ENVIRONMENT = package_environment.PackageEnvironment("tokenizers", ["--no-deps", "tokenizers"])
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
SPECIAL = ["<|endoftext|>", "<|pad|>", "<|end|>"]


def trained(folder, pre_tokenizer, normalizer=None, **options):
    """Returns a tokenizer trained on the guides and sources of this repository, and the path of its file."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    files = sorted(ROOT.glob("docs/*.md")) + sorted(ROOT.glob("core/*.cc"))
    trainer = trainers.BpeTrainer(vocab_size=3000, special_tokens=SPECIAL, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train([str(path) for path in files], trainer)
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.add_tokens([AddedToken("<think>", normalized=True), AddedToken("<thinking>", normalized=True),
                          AddedToken("<mask>", lstrip=True), AddedToken("<right>", rstrip=True, normalized=False),
                          AddedToken("word", single_word=True), AddedToken("e\u0301\u0301", normalized=True)])
    path = f"{folder}/tokenizer.json"
    tokenizer.save(path)
    return tokenizer, path


def is_known(code):
    """Returns true for characters that are the same in every version of Unicode: the characters of version 3.2, and planes 4 to 13."""
    old = unicodedata.ucd_3_2_0
    is_old = all(getattr(old, each)(chr(code)) == getattr(unicodedata, each)(chr(code)) for each in ("category", "combining"))
    return (is_old and old.category(chr(code)) != "Cn" or 0x40000 <= code < 0xE0000) and not 0xD800 <= code <= 0xDFFF


def random_texts(count):
    """Returns random texts that mix words of this repository, random characters, gaps, contractions and special tokens."""
    draw = random.Random(3)
    words = (ROOT / "README.md").read_text(encoding="utf-8").split()
    gaps = [" ", " ", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n ", "\u00a0", "\u3000", "\u2028", "\x1c", "\x85", ""]
    odd = ["'s", "'LL", "'Re", "'ſ", "'", "''d", "don't", "1234567", "12.5e-3", "٣٤", "Ⅷ²½", "naïve", "Ünïcödé", "λόγος",
           "данные", "数据集", "トークン", "한국어", "e\u0301", "🙂👩‍👩‍👧", "!!!", "=>", "\0", "\ufeff", *SPECIAL, "<|end",
           "<think>", "<thinking>", "<thin", " <mask>", "<mask> ", " <right>", "<right> ", "word", " word ", "sword",
           "\u24b6word", "word\u203f", "\u00e9\u0301", "e\u0301\u0301", "\ufb01\u212b", "\u1100\u1161\u11a8"]

    def character():
        while True:
            code = draw.choice([draw.randrange(0x80), draw.randrange(0x3000), draw.randrange(0x110000)])
            if is_known(code):
                return chr(code)

    def part():
        kind = draw.random()
        if kind < 0.5:
            return draw.choice(words)
        return draw.choice(odd) if kind < 0.8 else "".join(character() for _ in range(draw.randrange(6)))

    texts = ["", " ", "  ", "\n", "the", " the "]
    while len(texts) < count:
        texts.append("".join(part() + draw.choice(gaps) for _ in range(draw.randrange(1, 20))))
    return texts


class AgreesWithTokenizers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.texts = random_texts(10_000)

    def results(self, folder, *files):
        path = pathlib.Path(folder) / "texts.json"
        path.write_text(json.dumps(self.texts), encoding="utf-8")
        output = subprocess.run([PROGRAM, path, *files], check=True, stdout=subprocess.PIPE).stdout
        return json.loads(output)

    def compare(self, tokenizer, results):
        expected = tokenizer.encode_batch(self.texts, add_special_tokens=False)
        self.assertEqual(len(results), len(self.texts))
        for text, theirs, ours in zip(self.texts, expected, results):
            self.assertEqual(ours["tokens"], theirs.ids, repr(text))
            # Normalizes both texts, because since version 0.23 `tokenizers` decodes an added token
            # to its normal form.
            decoded = tokenizer.decode(theirs.ids, skip_special_tokens=False)
            self.assertEqual(*(unicodedata.normalize("NFC", each) for each in (ours["text"], decoded)), repr(text))
        print(f"{len(results)} texts, {sum(len(each['tokens']) for each in results)} tokens: all equal")

    def check(self, pre_tokenizer, **options):
        with tempfile.TemporaryDirectory() as folder:
            tokenizer, path = trained(folder, pre_tokenizer, **options)
            self.compare(tokenizer, self.results(folder, path))

    @staticmethod
    def byte_level(add_prefix_space=False):
        from tokenizers import pre_tokenizers

        return pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)

    def test_gpt2(self):
        self.check(self.byte_level())

    def test_gpt2_with_prefix_space(self):
        self.check(self.byte_level(add_prefix_space=True))

    @staticmethod
    def split(expression, behavior="isolated", invert=False):
        from tokenizers import Regex, pre_tokenizers

        return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(expression), behavior, invert),
                                        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    def test_llama3(self):
        self.check(self.split(LLAMA3), ignore_merges=True)

    def test_qwen2(self):
        from tokenizers import normalizers

        self.check(self.split(LLAMA3.replace("{1,3}", "")), normalizer=normalizers.NFC())

    def test_gpt4(self):
        self.check(self.split(LLAMA3, "removed", invert=True))

    def test_starcoder(self):
        from tokenizers import normalizers, pre_tokenizers

        steps = [pre_tokenizers.Digits(individual_digits=True), self.byte_level()]
        self.check(pre_tokenizers.Sequence(steps), normalizer=normalizers.Sequence([]))

    def test_digits_pre_tokenizer_and_nfkc(self):
        from tokenizers import normalizers, pre_tokenizers

        steps = [pre_tokenizers.Digits(), self.byte_level(add_prefix_space=True)]
        forms = normalizers.Sequence([normalizers.NFKD(), normalizers.NFKC()])
        self.check(pre_tokenizers.Sequence(steps), normalizer=forms)

    def test_training_gives_same_vocabulary_and_merges(self):
        from tokenizers import Tokenizer, decoders, models, trainers, pre_tokenizers

        text = "".join(path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("docs/*.md")))
        with tempfile.TemporaryDirectory() as folder:
            source, written = pathlib.Path(folder) / "text", pathlib.Path(folder) / "tokenizer.json"
            source.write_text(text, encoding="utf-8")
            subprocess.run([PROGRAM, "--train", source, "2000", written], check=True)
            tokenizer = Tokenizer(models.BPE())
            tokenizer.pre_tokenizer = self.byte_level()
            tokenizer.decoder = decoders.ByteLevel()
            tokenizer.train_from_iterator([text], trainers.BpeTrainer(
                vocab_size=2000, min_frequency=2, special_tokens=["<|endoftext|>"], show_progress=False,
                initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
            theirs, ours = json.loads(tokenizer.to_str())["model"], json.loads(written.read_text(encoding="utf-8"))["model"]
            self.assertEqual(ours["vocab"], theirs["vocab"])
            self.assertEqual(ours["merges"], theirs["merges"])
            self.compare(Tokenizer.from_file(str(written)), self.results(folder, written))

    def test_gpt2_vocabulary_and_merges_files(self):
        from tokenizers import ByteLevelBPETokenizer

        with tempfile.TemporaryDirectory() as folder:
            trained_one, _ = trained(folder, self.byte_level())
            files = trained_one.model.save(folder)
            tokenizer = ByteLevelBPETokenizer.from_file(*files)
            tokenizer.add_special_tokens(SPECIAL)
            self.compare(tokenizer, self.results(folder, *files, *SPECIAL))

    def test_character_classes(self):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers

        # A merge applies only within a piece, and so reveals whether a letter, digit, sign or gap is
        # in the same piece as the first byte of the text that follows.
        alphabet = {letter: number for number, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
        behind = [letter for letter in alphabet if letter > "\x7f"]
        merges = [(first, letter) for first in ["a", "1", "!", "\u010a"] for letter in behind]
        tokens = [*alphabet, *(first + letter for first, letter in merges)]
        tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, merges))
        tokenizer.pre_tokenizer = self.byte_level()
        tokenizer.decoder = decoders.ByteLevel()
        codes = [*range(0x80, 0x3400), *range(0x3400, 0x33500, 7), *range(0x33500, 0x110000, 97)]
        lines = [f"a{c}1{c}!{c}\n{c}\n" for c in map(chr, filter(is_known, codes))]
        self.texts = ["".join(lines[i : i + 50]) for i in range(0, len(lines), 50)]
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save(f"{folder}/tokenizer.json")
            self.compare(tokenizer, self.results(folder, f"{folder}/tokenizer.json"))


if __name__ == "__main__":
    ENVIRONMENT.main(__doc__)
    PROGRAM = sys.argv.pop(1)
    unittest.main()
