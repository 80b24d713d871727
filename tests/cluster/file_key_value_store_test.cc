// Values by key as files: any bytes, several writers, waiting, errors.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/cluster/file_key_value_store.h"

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>

#include "tests/support/hang_watchdog.h"
#include "tests/support/tensor_matchers.h"
#include "tutti/core/executor.h"

namespace tutti {
namespace file_store_test {

using testing::expect_error;

std::string new_folder(const std::string& name) {
  const std::string folder = ::testing::TempDir() + "/tutti_store_" + name;
  std::filesystem::remove_all(folder);
  return folder;
}

TimePoint after_ms(int milliseconds) {
  return deadline_after(Clock::system().now(), std::chrono::milliseconds(milliseconds));
}

TEST(FileKeyValueStore, KeepsValuesOfAnyBytesForAllWhoOpenTheFolder) {
  const std::string folder = new_folder("values");
  FileKeyValueStore store(folder), other(folder);
  EXPECT_EQ(store.get("a"), std::nullopt);
  const std::string large(1 << 20, '\xfe');
  for (const std::string& value : {std::string(), std::string("\0\n\xff", 3), large}) {
    store.set("a", value);
    EXPECT_EQ(other.get("a"), value);
    EXPECT_EQ(other.wait("a", after_ms(0)), value);
  }
}

TEST(FileKeyValueStore, KeysAreNoPaths) {
  const std::string folder = new_folder("keys");
  FileKeyValueStore store(folder + "/inner");
  const std::vector<std::string> keys{
      ".", "..", "/", "../x", "a/b", "a", "a.b", "/a/b", std::string(200, 'k')};
  for (const std::string& key : keys) store.set(key, "value of " + key);
  for (const std::string& key : keys) EXPECT_EQ(store.get(key), "value of " + key);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 1);
  for (const std::string& key : {std::string(), std::string(201, 'k'), std::string("a~b")}) {
    expect_error(ErrorCode::kInvalidArgument, {"file store", "the key '"},
                 [&] { store.set(key, "x"); });
  }
  expect_error(ErrorCode::kInvalidArgument, {"1048577"},
               [&] { store.set("k", std::string((1 << 20) + 1, 'x')); });
}

TEST(FileKeyValueStore, ReadersSeeWholeValuesWhileOthersWrite) {
  const testing::HangWatchdog watchdog("file store");
  FileKeyValueStore store(new_folder("writers"));
  store.set("k", std::string(5000, 'a'));
  std::atomic<bool> done{false};
  std::atomic<int> num_writes[2] = {};
  std::vector<std::unique_ptr<Thread>> writers;
  for (const int writer : {0, 1}) {
    writers.push_back(Executor::system().start("writer", [&, writer] {
      while (!done) {
        store.set("k", std::string(5000, writer == 0 ? 'a' : 'b'));
        ++num_writes[writer];
      }
    }));
  }
  // At least 200 reads, and on until both writers wrote 50 times beside them.
  bool all_whole = true;
  for (int i = 0; all_whole && (i < 200 || num_writes[0] < 50 || num_writes[1] < 50); ++i) {
    const std::string value = store.get("k").value();
    all_whole = value == std::string(5000, value.at(0));
  }
  done = true;
  EXPECT_TRUE(all_whole);
}

TEST(FileKeyValueStore, WaitsForAValueOrTheDeadline) {
  const testing::HangWatchdog watchdog("file store");
  const std::string folder = new_folder("waits");
  FileKeyValueStore store(folder);
  const auto setter = Executor::system().start("setter", [&] {
    Clock::system().sleep_for(std::chrono::milliseconds(10));
    FileKeyValueStore(folder).set("address", "x");
  });
  EXPECT_EQ(store.wait("address", after_ms(20000)), "x");
  expect_error(ErrorCode::kDeadlineExceeded, {folder, "'missing'"},
               [&] { store.wait("missing", after_ms(5)); });
}

TEST(FileKeyValueStore, WhatTheSystemRefusesIsNamed) {
  const std::string file = ::testing::TempDir() + "/tutti_store_file";
  std::ofstream(file) << "no folder";
  expect_error(ErrorCode::kUnavailable, {file, "is no folder"}, [&] { FileKeyValueStore s(file); });
  const std::string folder = new_folder("removed");
  FileKeyValueStore store(folder);
  std::filesystem::remove_all(folder);
  expect_error(ErrorCode::kUnavailable, {folder, "writing the value of 'k'"},
               [&] { store.set("k", "x"); });
}

}  // namespace file_store_test
}  // namespace tutti
