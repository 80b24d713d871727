// Runs a fuzz target without libFuzzer, on its seed files and on damaged copies of them.
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "core/file.h"
#include "tutti/core/random.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

void run_on(const std::string& input) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
}

/// Returns the input after one to four changes, which erase, insert, duplicate or overwrite bytes.
std::string damage(std::string input, const tutti::RandomStream& random) {
  const std::uint64_t num_changes = 1 + random.below(0, 4);
  for (std::uint64_t i = 0; i < num_changes; ++i) {
    const std::uint64_t place = random.below(10 * i + 1, input.size() + 1);
    const std::uint64_t length = random.below(10 * i + 2, 9);
    const char byte = static_cast<char>(random.below(10 * i + 3, 256));
    switch (random.below(10 * i + 4, 4)) {
      case 0:
        input.erase(place, length);
        break;
      case 1:
        input.insert(place, length, byte);
        break;
      case 2:
        input.insert(place, input.substr(place, length));
        break;
      default:
        if (place < input.size()) input[place] = byte;
    }
  }
  return input;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: %s SEED_FOLDER NUM_INPUTS\n", argv[0]);
    return 2;
  }
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(argv[1]))
    paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> seeds = {""};
  for (const auto& path : paths) seeds.push_back(tutti::read_file(path));
  for (const std::string& seed : seeds) run_on(seed);
  const std::uint64_t num_inputs = std::strtoull(argv[2], nullptr, 10);
  for (std::uint64_t i = 0; i < num_inputs; ++i) {
    run_on(damage(seeds[i % seeds.size()], tutti::RandomStream({.seed = 1, .a = i})));
  }
  std::printf("%zu seeds, %llu damaged inputs: no failure\n", seeds.size(),
              static_cast<unsigned long long>(num_inputs));
  return seeds.size() > 1 ? 0 : 1;
}
