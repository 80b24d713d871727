// Tests compiled programs stored in a folder: processes that find them do not compile.
// SPDX-License-Identifier: Apache-2.0
#include "core/file.h"
#include "core/hash.h"
#include "tensor/xla/pjrt_client.h"
#include "tests/xla/xla_test_support.h"

namespace tutti::internal {
namespace {

/// Returns the output and log of a process that trains for three steps.
std::string three_steps(const std::string& folder) {
  const std::string command =
      concat("TUTTI_XLA_CACHE='", folder, "' ", TUTTI_TEST_THREE_STEPS, " 2>&1");
  FILE* const output = popen(command.c_str(), "r");
  std::string text;
  char part[4096];
  while (const std::size_t size = fread(part, 1, sizeof(part), output)) text.append(part, size);
  EXPECT_EQ(pclose(output), 0) << text;
  return text;
}

/// Returns "1 compiled, weights ...".
std::string result_in(const std::string& text) {
  const std::size_t end = text.rfind('\n', text.size() - 2);
  return text.substr(end + 1);
}

void expect_word(const std::string& text, const std::string& word) {
  EXPECT_NE(text.find(word), std::string::npos) << word << ": " << text;
}

class XlaProgramFiles : public ::testing::Test {
 protected:
  ~XlaProgramFiles() override { std::filesystem::remove_all(folder_); }

  std::string only_file() const {
    std::vector<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      all.push_back(entry.path().string());
    EXPECT_EQ(all.size(), 1u);
    return all.front();
  }

  const std::string folder_ = own_folder("xla_program_files");
};

TEST_F(XlaProgramFiles, ASecondProcessDoesNotCompileAndHasTheSameBits) {
  const std::string without = result_in(three_steps(""));
  EXPECT_TRUE(without.starts_with("1 compiled, weights ")) << without;
  EXPECT_EQ(result_in(three_steps(folder_)), without);
  EXPECT_EQ(result_in(three_steps(folder_)), "0" + without.substr(1));
}

TEST_F(XlaProgramFiles, ADamagedOrForeignFileIsWarnedOfAndReplaced) {
  const std::string result = result_in(three_steps(folder_));
  const std::string path = only_file(), whole = read_file(path);
  const auto expect_compiled = [&](const std::string& file, const char* reason) {
    write_file_atomically(path, file);
    const std::string text = three_steps(folder_);
    expect_word(text, reason);
    EXPECT_EQ(result_in(text), result);
    EXPECT_EQ(result_in(three_steps(folder_)), "0" + result.substr(1));
  };
  std::string damaged = whole, foreign = whole;
  damaged[whole.size() / 2] ^= 1;
  foreign[foreign.find("plugin ") + 8] ^= 1;
  expect_compiled(damaged, "it is damaged");
  expect_compiled(whole.substr(0, whole.size() - 100), "it is damaged");
  expect_compiled(foreign, "it is no program of this plugin");
  expect_compiled("", "it is no program of this plugin");
}

TEST_F(XlaProgramFiles, AFolderThatCannotBeWrittenIsAWarning) {
  const std::string text = three_steps("/proc/nowhere");
  expect_word(text, "is not written");
  expect_word(text, "1 compiled");
}

TEST_F(XlaProgramFiles, NameTheHashOfThePlugin) {
  three_steps(folder_);
  const std::string hash = hash_of(read_file(kPlugin));
  EXPECT_EQ(PjrtClient::get().plugin().file_hash(), hash);
  expect_word(read_file(only_file()), "plugin " + hash);
}

}  // namespace
}  // namespace tutti::internal
