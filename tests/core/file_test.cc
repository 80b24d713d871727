// Reading whole files and replacing them atomically.
// SPDX-License-Identifier: Apache-2.0
#include "core/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <atomic>
#include <filesystem>

#include "tutti/core/error.h"
#include "tutti/core/executor.h"

namespace tutti {
namespace {

using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(::testing::TempDir()) /
              concat("tutti_file_", test->name(), "_", ::getpid());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string path(const char* name) const { return (folder_ / name).string(); }
  long num_files() const { return std::distance(std::filesystem::directory_iterator(folder_), {}); }

  std::filesystem::path folder_;
};

TEST_F(FileTest, ReadsBackWhatWasWritten) {
  for (std::size_t size :
       {std::size_t{0}, std::size_t{1}, std::size_t{65536}, std::size_t{300'001}}) {
    std::string bytes(size, '\0');
    for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<char>(i * 7);
    write_file_atomically(path("a"), bytes);
    EXPECT_EQ(read_file(path("a")), bytes);
  }
  EXPECT_EQ(num_files(), 1);  // no temporary file is left
}

TEST_F(FileTest, MakesMissingFolders) {
  write_file_atomically(path("x/y/z.txt"), "deep");
  EXPECT_EQ(read_file(path("x/y/z.txt")), "deep");
}

TEST_F(FileTest, ReadsFilesWithoutAStatedSize) {
  EXPECT_NE(read_file("/proc/self/status").find("Name:"), std::string::npos);
}

TEST_F(FileTest, MissingFileAndFolderAreNamed) {
  try {
    read_file(path("missing"));
    FAIL() << "read a missing file";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kNotFound);
    EXPECT_NE(error.message().find(path("missing")), std::string::npos);
    EXPECT_NE(error.message().find("No such file"), std::string::npos);
  }
  try {
    read_file(folder_.string());
    FAIL() << "read a folder";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
  }
}

TEST_F(FileTest, ListsTheNamesInAFolder) {
  EXPECT_THAT(names_in_folder(folder_.string()), IsEmpty());
  write_file_atomically(path("b"), "1");
  write_file_atomically(path(".a"), "2");
  write_file_atomically(path("folder/c"), "3");
  EXPECT_THAT(names_in_folder(folder_.string()), UnorderedElementsAre("b", ".a", "folder"));
  EXPECT_THAT(names_in_folder(path("missing")), IsEmpty());
  EXPECT_THAT(names_in_folder(path("b")), IsEmpty());
}

TEST_F(FileTest, AFailedWriteLeavesTheOldFile) {
  write_file_atomically(path("a"), "old");
  // Files may not grow beyond 1000 bytes: the write fails half-way, without the signal for that.
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit small = before;
  small.rlim_cur = 1000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  EXPECT_THROW(write_file_atomically(path("a"), std::string(5000, 'n')), Error);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(read_file(path("a")), "old");
  EXPECT_EQ(num_files(), 1);
}

TEST_F(FileTest, AFileInPlaceOfTheFolderIsReported) {
  write_file_atomically(path("a"), "file");
  try {
    write_file_atomically(path("a/b"), "x");
    FAIL() << "wrote below a file";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnavailable);
    EXPECT_NE(error.message().find("Not a directory"), std::string::npos) << error.message();
  }
}

TEST_F(FileTest, AReaderSeesTheOldOrTheNewNeverHalf) {
  const std::string one(200'000, '1'), two(200'000, '2');
  write_file_atomically(path("a"), one);
  std::atomic<bool> done{false};
  auto writer = Executor::system().start("writer", [&] {
    for (int i = 0; i < 20; ++i) write_file_atomically(path("a"), i % 2 == 0 ? two : one);
    done = true;
  });
  int reads = 0;
  do {
    const std::string seen = read_file(path("a"));
    ASSERT_TRUE(seen == one || seen == two);
    ++reads;
  } while (!done);
  writer->join();
  EXPECT_GT(reads, 0);
}

}  // namespace
}  // namespace tutti
