// Full, broken and read-only disks while saving: the error says what to do, nothing is lost.
// SPDX-License-Identifier: Apache-2.0
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "tests/checkpoint/saved_series.h"
#include "tests/support/file_faults.h"
#include "tests/support/warnings.h"
#include "tutti/checkpoint/checkpoint_versions.h"

namespace tutti {
namespace disk_errors_test {

using file_faults::Action;
using saved_series::fast_folder;
using saved_series::restored_number;
using saved_series::Series;
using testing::AnyOf;
using testing::HasSubstr;

class DiskErrors : public testing::TestWithParam<Action> {
 protected:
  void TearDown() override {
    file_faults::disarm();
    std::filesystem::remove_all(folder_);
  }

  thrown::LogLines log_{LogLevel::kWarning};
  std::string folder_ = fast_folder("disk");
};

// Calls from the n-th on fail, for every n: the disk stays as it is until somebody does something.
TEST_P(DiskErrors, LeaveTheVersionBeforeAndGoOnAfterwards) {
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
      EXPECT_THAT(found, AnyOf(1, 2));  // 2: the last sync failed, after the commit
    } else {
      EXPECT_EQ(found, 2);  // what failed was deleting old files
    }
    series.save(manager, 3, 30);
    EXPECT_EQ(restored_number(folder_), 3);
    EXPECT_EQ(list_checkpoints(folder_).size(), 1u);
    if (!was_reached) break;
  }
  EXPECT_GE(num_failed, 10);
}

INSTANTIATE_TEST_SUITE_P(Checkpoint, DiskErrors,
                         testing::Values(Action::kNoSpace, Action::kIoError, Action::kReadOnly),
                         [](const auto& of) {
                           return of.param == Action::kNoSpace   ? "NoSpace"
                                  : of.param == Action::kIoError ? "IoError"
                                                                 : "ReadOnly";
                         });

using DiskErrorsOnce = DiskErrors;

TEST_P(DiskErrorsOnce, NameTheFileAndTheBytesNeeded) {
  Series series;
  CheckpointManager manager(series.checkpoint(), folder_);
  file_faults::arm(folder_, Action::kNoSpace, 4, 100);
  series.set(1);
  EXPECT_ERROR(manager.save(7), kResourceExhausted,
               folder_ + "/step_7/model-00001-of-00001.safetensors", "No space left", "it needs 3",
               " bytes, ", "are free there", "max_to_keep");
  ASSERT_TRUE(manager.last_error());
}

TEST_P(DiskErrorsOnce, AreLoggedWhenTrainingShallGoOn) {
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
    EXPECT_THAT(log_.list(),
                testing::ElementsAre(testing::AllOf(HasSubstr("Input/output error"),
                                                    HasSubstr("the next save tries again"))));
    EXPECT_EQ(restored_number(folder_), 1);
    series.save(manager, 3, 3);
    manager.wait();
    EXPECT_FALSE(manager.last_error());
    EXPECT_EQ(restored_number(folder_), 3);
  }
}

TEST_P(DiskErrorsOnce, OfABackgroundSaveAreThrownByTheNextCall) {
  Series series;
  {
    CheckpointManager manager(series.checkpoint(), folder_, {.asynchronous = true});
    file_faults::arm(folder_, Action::kReadOnly, 1, 100);
    series.save(manager, 1, 1);
    EXPECT_ERROR(series.save(manager, 2, 2), kUnavailable, "Read-only");
    manager.save(2);
    EXPECT_ERROR(manager.wait(), kUnavailable, "Read-only");
    manager.wait();  // once is enough
    manager.save(2);
    EXPECT_THAT(log_.list(), testing::IsEmpty());
  }
  EXPECT_THAT(log_.list(), testing::ElementsAre(HasSubstr("Read-only")));  // by the destructor
}

INSTANTIATE_TEST_SUITE_P(Checkpoint, DiskErrorsOnce, testing::Values(Action::kNoSpace));

// `ulimit -f`: the system would end the program by a signal, at the first save that is too large.
TEST_P(DiskErrorsOnce, FilesThatMayNotGrowSoLargeAreAFullDisk) {
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

/// What the child of the next test does. 0: as it should be; 77: this machine cannot.
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

TEST(RealDisk, ThatIsFullKeepsWhatIsThere) {
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

}  // namespace disk_errors_test
}  // namespace tutti
