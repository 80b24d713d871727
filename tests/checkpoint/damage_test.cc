// Tests damaged versions and failing disks: detection, fallback to earlier versions, and errors.
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/version.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <array>
#include <atomic>

#include "core/file.h"
#include "tests/checkpoint/saved_series.h"
#include "tests/support/file_faults.h"
#include "tests/support/warnings.h"
#include "tutti/checkpoint/checkpoint_versions.h"
#include "tutti/core/executor.h"
#include "tutti/core/random.h"

namespace tutti::testing::damage_test {
using file_faults::Action;
using internal::Folder;

class DamagedCheckpoint : public Test {
 protected:
  void SetUp() override {
    folder_ = fast_folder("damage");
    CheckpointManager manager(series_.checkpoint(), folder_);
    series_.save(manager, 1, 1);
    series_.save(manager, 2, 2);
    newest_ = folder_ + "/step_2";
    index_ = newest_ + "/model.safetensors.index.json";
    state_ = newest_ + "/state.json";
    tensors_ = newest_ + "/model-00001-of-00001.safetensors";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  /// Expects that reading the newest version fails with an error that names `path`.
  void expect_found(const std::string& path) {
    EXPECT_ERROR(internal::read_version(Folder::open(newest_)), kDataLoss, path);
  }
  void expect_going_back(const std::string& path) {
    log_.clear();
    expect_found(path);
    EXPECT_EQ(restored_number(folder_), 1);
    EXPECT_THAT(log_.list(), ElementsAre(AllOf(HasSubstr(path), HasSubstr("; restoring"),
                                               HasSubstr(folder_ + "/step_1"))));
    CheckpointManager manager(series_.checkpoint(), folder_);
    EXPECT_ERROR(manager.restore_latest({.strict = true}), kDataLoss, path, "strict",
                 "step_1', which is undamaged");
  }

  LogLines log_{LogLevel::kWarning};
  std::string folder_, newest_, index_, state_, tensors_;
  Series series_;
};

void flip(const std::string& path, std::uint64_t bit) {
  std::string bytes = read_file(path);
  bytes.at(bit / 8) = static_cast<char>(bytes.at(bit / 8) ^ (1 << bit % 8));
  write_file_atomically(path, bytes);
}

TEST_F(DamagedCheckpoint, EachOfTenThousandFlippedBitsIsDetected) {
  const RandomStream random({.seed = 6});
  for (std::uint64_t i = 0; i < 10'000; ++i) {
    const std::string path = std::array{index_, state_, tensors_}[random.below(3 * i, 3)];
    std::string bytes = read_file(path);
    const std::uint64_t bit = random.below(3 * i + 1, 8 * bytes.size());
    SCOPED_TRACE(concat(path, " bit ", bit));
    const char before = bytes[bit / 8];
    bytes[bit / 8] = static_cast<char>(before ^ (1 << bit % 8));
    {
      const Folder folder = Folder::open(newest_);
      internal::FileWriter writer = folder.create_file(path.substr(newest_.size() + 1), 0);
      writer.write(bytes);
      writer.finish();
    }
    i % 100 == 0 ? expect_going_back(path) : expect_found(path);
    bytes[bit / 8] = before;
    write_file_atomically(path, bytes);
  }
  EXPECT_EQ(restored_number(folder_), 2);
}

TEST_F(DamagedCheckpoint, EveryTruncationIsDetected) {
  for (const std::string& path : {index_, state_, tensors_}) {
    const std::string bytes = read_file(path);
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      std::filesystem::resize_file(path, size);
      SCOPED_TRACE(concat(path, " cut at ", size));
      size % 500 == 0 ? expect_going_back(path) : expect_found(path);
      write_file_atomically(path, bytes);
    }
    write_file_atomically(path, bytes + "x");
    expect_going_back(path);
    write_file_atomically(path, bytes);
  }
  EXPECT_EQ(restored_number(folder_), 2);
}

// Truncates a large file at each multiple of the page size, and flips bits.
TEST_F(DamagedCheckpoint, ErrorNamesTruncatedOrDamagedFile) {
  const Variable large(Tensor::full({600'000}, 0.5), VariableOptions{.name = "large"});
  CheckpointManager manager(Checkpoint({large}), folder_);
  const std::string version = manager.save(3);
  const std::string path = version + "/model-00001-of-00001.safetensors";
  const std::string bytes = read_file(path);
  for (std::size_t size = 0; size < bytes.size(); size += 4096) {
    std::filesystem::resize_file(path, size);
    EXPECT_ERROR(load_weights(version, {large}), kDataLoss, path, concat(bytes.size()),
                 concat(size));
  }
  write_file_atomically(path, bytes);
  for (const std::size_t byte : {std::size_t{20}, bytes.size() - 1'000'000, bytes.size() - 1}) {
    flip(path, 8 * byte);
    EXPECT_THAT(verify_checkpoint(version), ElementsAre(HasSubstr(path)));
    EXPECT_ERROR(load_weights(version, {large}), kDataLoss, path);
    flip(path, 8 * byte);
  }
  flip(path, 8 * (bytes.size() - 1));
  flip(version + "/state.json", 80);
  EXPECT_THAT(verify_checkpoint(version),
              ElementsAre(AllOf(HasSubstr(path), HasSubstr("is damaged; expected checksum")),
                          HasSubstr(version + "/state.json: the file is damaged")));
}

TEST_F(DamagedCheckpoint, RestoreFailsIfAllVersionsAreDamaged) {
  flip(tensors_, 8000);
  flip(folder_ + "/step_1/model.safetensors.index.json", 800);
  EXPECT_ERROR(restored_number(folder_), kDataLoss, "is damaged", folder_, tensors_,
               "step_1/model.safetensors.index.json");
}

TEST_F(DamagedCheckpoint, MissingFilesAndSymbolicLinksAreDetected) {
  const std::string elsewhere = folder_ + "/elsewhere";
  std::filesystem::rename(tensors_, elsewhere);
  expect_going_back(tensors_);
  std::filesystem::create_symlink(elsewhere, tensors_);
  expect_going_back(tensors_);
  EXPECT_THAT(log_.list(), ElementsAre(HasSubstr("got a symbolic link, which is not followed")));
  std::filesystem::remove(tensors_);
  std::filesystem::create_directory(tensors_);
  expect_going_back(tensors_);
  std::filesystem::remove(tensors_);
  std::filesystem::rename(elsewhere, tensors_);
  EXPECT_EQ(restored_number(folder_), 2);
  std::filesystem::rename(newest_, elsewhere);
  std::filesystem::create_symlink(elsewhere, newest_);
  log_.clear();
  EXPECT_EQ(restored_number(folder_), 1);
  EXPECT_THAT(log_.list(), ElementsAre(AllOf(HasSubstr(newest_), HasSubstr("is a symbolic link"))));
}

TEST_F(DamagedCheckpoint, DoesNotCountTowardsMaxToKeep) {
  CheckpointManager manager(series_.checkpoint(), folder_, {.max_to_keep = 2});
  flip(tensors_, 8000);
  EXPECT_EQ(manager.restore_latest()->step, 1);
  series_.save(manager, 3, 3);
  flip(folder_ + "/step_3/model.safetensors.index.json", 800);
  EXPECT_EQ(restored_number(folder_), 1);  // version 1 is still intact
  series_.save(manager, 4, 4);
  log_.clear();
  // the damaged version is known to be older, so it is not read
  EXPECT_EQ(restored_number(folder_), 4);
  EXPECT_THAT(log_.list(), IsEmpty());
  flip(folder_ + "/step_4/model-00001-of-00001.safetensors", 8000);
  EXPECT_EQ(restored_number(folder_), 1);
}

TEST_F(DamagedCheckpoint, IsReplacedByNewSaveOfSameStep) {
  flip(tensors_, 8000);
  CheckpointManager manager(series_.checkpoint(), folder_);
  EXPECT_EQ(manager.restore_latest()->step, 1);
  series_.save(manager, 2, 2);
  EXPECT_EQ(restored_number(folder_), 2);
}

// These errors are not due to damage, and falling back to an earlier version would silently lose
// steps.
TEST_F(DamagedCheckpoint, MismatchedVariablesAndLaterFormatsAreRejected) {
  Variable other(Tensor::zeros({3}), VariableOptions{.name = "other"});
  CheckpointManager manager(Checkpoint({other}), folder_);
  EXPECT_INVALID(manager.restore_latest(), newest_, "'other' is missing");
  std::string text = to_json(*internal::read_index(Folder::open(newest_))).dump();
  text.replace(text.find("\"version\":3"), 11, "\"version\":4");
  write_file_atomically(index_, internal::sealed(Json::parse(text)));
  EXPECT_ERROR(restored_number(folder_), kUnimplemented, index_, "later version");
  std::filesystem::remove(index_);
  write_file_atomically(newest_ + "/manifest.json", "{}");
  EXPECT_ERROR(restored_number(folder_), kUnimplemented, newest_, "manifest.json",
               "commit 90f32457");
  EXPECT_EQ(list_checkpoints(folder_).back().state, VersionState::kDamaged);
  CheckpointManager again(series_.checkpoint(), folder_);
  series_.save(again, 2, 2);  // replaces the damaged version
  EXPECT_EQ(restored_number(folder_), 2);
  EXPECT_EQ(Folder::open(newest_).names().size(), 3u);
}

// In the earlier format, file names contain the sequence number of the save, and later saves must
// have larger numbers.
TEST_F(DamagedCheckpoint, EarlierFormatIsRefusedUntilNextSave) {
  const std::string earlier = folder_ + "/step_5";
  std::filesystem::create_directory(earlier);
  write_file_atomically(earlier + "/manifest.json", "{}");
  write_file_atomically(earlier + "/part_0_of_1.save_7.safetensors", "x");
  CheckpointManager manager(series_.checkpoint(), folder_, {.max_to_keep = 2});
  EXPECT_ERROR(manager.restore_latest(), kUnimplemented, earlier,
               "move away all folders that contain manifest.json");
  EXPECT_ERROR(manager.latest(), kUnimplemented, earlier, "commit 90f32457");
  log_.clear();
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(manager.checkpoints(), ElementsAre(folder_ + "/step_1", newest_));
  }
  EXPECT_THAT(log_.list(), ElementsAre(AllOf(HasSubstr("skipping"), HasSubstr(earlier))));
  series_.save(manager, 3, 3);
  EXPECT_EQ(restored_number(folder_), 3);
  EXPECT_EQ(manager.latest(), folder_ + "/step_3");
  EXPECT_EQ(list_checkpoints(folder_).back().sequence, 8);
  flip(folder_ + "/step_3/model-00001-of-00001.safetensors", 8000);
  EXPECT_ERROR(restored_number(folder_), kUnimplemented, earlier);
}

TEST_F(DamagedCheckpoint, IrregularIndexFileIsDetectedAndNothingIsDeleted) {
  std::filesystem::rename(index_, folder_ + "/elsewhere");
  std::filesystem::create_directory(index_);
  expect_going_back(index_);
  std::filesystem::remove(index_);
  std::filesystem::create_symlink(folder_ + "/elsewhere", index_);
  expect_going_back(index_);
  CheckpointManager manager(series_.checkpoint(), folder_);
  series_.save(manager, 3, 3);
  EXPECT_TRUE(std::filesystem::exists(tensors_));
  EXPECT_EQ(list_checkpoints(folder_).size(), 3u);
}

// A concurrent save may delete a version's tensors after a reader has read the version's index. The
// reader then starts over.
TEST_F(DamagedCheckpoint, ConcurrentReplacementIsNotReportedAsDamage) {
  constexpr std::int64_t kNumSaves = 600;
  std::atomic<bool> is_saving{true};
  const auto saver = Executor::system().start("saver", [&] {
    Series series;
    CheckpointManager manager(series.checkpoint(), folder_);
    for (std::int64_t i = 3; i <= kNumSaves; ++i) series.save(manager, i, 2);
    is_saving = false;
  });
  std::int64_t newest = 2;
  while (is_saving) {
    const auto number = restored_number(folder_);
    ASSERT_TRUE(number);
    ASSERT_GE(*number, newest);  // a complete version, not older than the previous one
    newest = *number;
  }
  EXPECT_THAT(log_.list(), IsEmpty());
}

TEST_F(DamagedCheckpoint, SecondWriterToFolderIsRefused) {
  const Folder run = Folder::open(folder_);
  run.lock();
  CheckpointManager manager(series_.checkpoint(), folder_);
  EXPECT_ERROR(manager.save(3), kFailedPrecondition, "another process", folder_);
}

class DiskErrors : public TestWithParam<Action> {
 protected:
  void TearDown() override {
    file_faults::disarm();
    std::filesystem::remove_all(folder_);
  }

  LogLines log_{LogLevel::kWarning};
  std::string folder_ = fast_folder("disk");
};

// For every n, the n-th file system call and all later calls fail until the disk is repaired.
TEST_P(DiskErrors, LeavePreviousVersionIntactAndAllowLaterSaves) {
  const char* reasons[] = {"No space left on device", "Input/output error",
                           "Read-only file system"};
  const std::string reason =
      reasons[static_cast<int>(GetParam()) - static_cast<int>(Action::kNoSpace)];
  int num_failed = 0;
  for (int call = 1;; ++call) {
    SCOPED_TRACE(call);
    std::filesystem::remove_all(folder_);
    Series series;
    CheckpointManager manager(series.checkpoint(), folder_, {.max_to_keep = 1});
    series.save(manager, 1, 10);
    log_.clear();
    file_faults::arm(folder_, GetParam(), call, 1000);
    std::optional<Error> error;
    try {
      series.save(manager, 2, 20);
    } catch (const Error& thrown) {
      error = thrown;
    }
    const bool was_reached = static_cast<int>(file_faults::calls().size()) >= call;
    file_faults::disarm();
    const auto found = restored_number(folder_);
    if (error) {
      ++num_failed;
      EXPECT_THAT(error->message(), HasSubstr(reason));
      EXPECT_THAT(error->message(), HasSubstr(folder_));
      EXPECT_EQ(error->code(), GetParam() == Action::kNoSpace ? ErrorCode::kResourceExhausted
                                                              : ErrorCode::kUnavailable);
      EXPECT_THAT(found, AnyOf(1, 2));  // 2 if the last sync, which follows the commit, failed
    } else {
      EXPECT_EQ(found, 2);  // only the deletion of old files may have failed
    }
    series.save(manager, 3, 30);
    EXPECT_EQ(restored_number(folder_), 3);
    EXPECT_EQ(list_checkpoints(folder_).size(), 1u);
    if (!was_reached) break;
  }
  EXPECT_GE(num_failed, 10);
}

INSTANTIATE_TEST_SUITE_P(Checkpoint, DiskErrors,
                         Values(Action::kNoSpace, Action::kIoError, Action::kReadOnly),
                         [](const auto& of) {
                           return of.param == Action::kNoSpace   ? "NoSpace"
                                  : of.param == Action::kIoError ? "IoError"
                                                                 : "ReadOnly";
                         });

using SaveErrors = DiskErrors;

TEST_P(SaveErrors, NameFileAndRequiredBytes) {
  Series series;
  CheckpointManager manager(series.checkpoint(), folder_);
  file_faults::arm(folder_, Action::kNoSpace, 4, 100);
  series.set(1);
  EXPECT_ERROR(manager.save(7), kResourceExhausted,
               folder_ + "/step_7/model-00001-of-00001.safetensors", "No space left",
               "bytes needed: 3", "bytes free: ", "max_to_keep");
  ASSERT_TRUE(manager.last_error());
}

TEST_P(SaveErrors, AreLoggedIfTrainingContinuesOnError) {
  for (const bool asynchronous : {false, true}) {
    std::filesystem::remove_all(folder_);
    log_.clear();
    Series series;
    CheckpointManager manager(series.checkpoint(), folder_,
                              {.asynchronous = asynchronous, .on_error = OnSaveError::kContinue});
    series.save(manager, 1, 1);
    manager.wait();
    EXPECT_FALSE(manager.last_error());
    file_faults::arm(folder_, Action::kIoError, 1, 100);
    series.save(manager, 2, 2);
    manager.wait();
    file_faults::disarm();
    ASSERT_TRUE(manager.last_error());
    EXPECT_THAT(log_.list(), ElementsAre(AllOf(HasSubstr("Input/output error"),
                                               HasSubstr("the next save tries again"))));
    EXPECT_EQ(restored_number(folder_), 1);
    series.save(manager, 3, 3);
    manager.wait();
    EXPECT_FALSE(manager.last_error());
    EXPECT_EQ(restored_number(folder_), 3);
  }
}

TEST_P(SaveErrors, AsyncErrorIsThrownByNextCall) {
  Series series;
  {
    CheckpointManager manager(series.checkpoint(), folder_, {.asynchronous = true});
    file_faults::arm(folder_, Action::kReadOnly, 1, 100);
    series.save(manager, 1, 1);
    EXPECT_ERROR(series.save(manager, 2, 2), kUnavailable, "Read-only");
    manager.save(2);
    EXPECT_ERROR(manager.wait(), kUnavailable, "Read-only");
    manager.wait();  // an error is reported only once
    manager.save(2);
    EXPECT_THAT(log_.list(), IsEmpty());
  }
  EXPECT_THAT(log_.list(), ElementsAre(HasSubstr("Read-only")));  // logged by the destructor
}

INSTANTIATE_TEST_SUITE_P(Checkpoint, SaveErrors, Values(Action::kNoSpace));

// By default, SIGXFSZ would end the program at the first save that exceeds `ulimit -f`.
TEST_P(SaveErrors, FileSizeLimitIsReportedAsFullDisk) {
  for (const bool asynchronous : {false, true}) {
    std::filesystem::remove_all(folder_);
    Series series;
    CheckpointManager manager(series.checkpoint(), folder_,
                              {.asynchronous = asynchronous, .on_error = OnSaveError::kContinue});
    series.save(manager, 1, 1);
    manager.wait();
    rlimit before = {};
    ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
    const rlimit small = {1000, before.rlim_max};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
    series.save(manager, 2, 2);
    manager.wait();
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
    ASSERT_TRUE(manager.last_error());
    EXPECT_EQ(manager.last_error()->code(), ErrorCode::kResourceExhausted);
    EXPECT_THAT(manager.last_error()->message(), HasSubstr("File too large"));
    EXPECT_EQ(restored_number(folder_), 1);
    series.save(manager, 3, 3);
    manager.wait();
    EXPECT_EQ(restored_number(folder_), 3);
  }
}

/// Runs in the child process of the next test. Returns 0 on success, or 77 if this machine does not
/// support the test.
int fill_a_real_disk(const std::string& folder) {
  std::filesystem::create_directories(folder);
  if (::unshare(CLONE_NEWNS) != 0 || ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, "") != 0 ||
      ::mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=64k") != 0) {
    return 77;
  }
  Series series;
  CheckpointManager manager(series.checkpoint(), folder + "/run",
                            {.max_to_keep = 0, .on_error = OnSaveError::kContinue});
  int last = 0;
  for (int i = 1; i <= 30; ++i) {
    series.save(manager, i, i);
    if (!manager.last_error()) last = i;
  }
  if (last < 2 || last == 30 || restored_number(folder + "/run") != last) return 1;
  if (manager.last_error()->code() != ErrorCode::kResourceExhausted) return 2;
  std::filesystem::remove_all(folder + "/run/step_1");
  series.save(manager, 31, 31);
  return restored_number(folder + "/run") == 31 ? 0 : 3;
}

TEST(RealDisk, FullDiskKeepsExistingFiles) {
  const std::string folder = fast_folder("tmpfs");
  const pid_t child = ::fork();
  if (child == 0) {
    set_log_sink([](LogLevel, std::string_view) {});
    ::_exit(fill_a_real_disk(folder));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  std::filesystem::remove_all(folder);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == 77) GTEST_SKIP() << "mounting a tmpfs is not permitted here";
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace tutti::testing::damage_test
