// Loads a GPT from a Hugging Face folder, writes its logits and a continuation, and saves the GPT
// again.
// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <exception>

#include "examples/gpt/pretrained.h"
#include "tutti/model/generate.h"

using namespace tutti;
using namespace tutti::examples;

namespace {

void run(const std::string& folder, const std::string& work) {
  Gpt model(read_config(folder));
  load_pretrained(model, folder);
  const Tensor tokens = read_safetensors(work + "/tokens.safetensors").tensors.at(0).value;
  const GenerateOptions likeliest{
      .max_new_tokens = 12, .sampling = {.temperature = 0.0}, .window = model.config().context};
  SafetensorsFile results;
  results.tensors = {{"logits", model(tokens)}, {"generated", generate(model, tokens, likeliest)}};
  write_safetensors(work + "/results.safetensors", results);
  save_pretrained(model.config(), pretrained_file(model), "{}", work + "/saved");
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 3) {
    std::fprintf(stderr, "usage: gpt_logits FOLDER FOLDER_OF_TOKENS_AND_RESULTS\n");
    return 2;
  }
  run(argv[1], argv[2]);
} catch (const std::exception& error) {
  std::fprintf(stderr, "gpt_logits: %s\n", error.what());
  return 1;
}
