// Folders of checkpoints: the newest is known, old ones go.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/checkpoint/checkpoint_manager.h"

#include "tests/checkpoint/checkpoint_test_util.h"
#include "tutti/core/file.h"

namespace tutti {
namespace checkpoint_manager_test {

using checkpoint_test_util::empty_folder;
using checkpoint_test_util::expect_error;
using testing::ElementsAre;
using testing::IsEmpty;

Variable scalar_variable(float value) {
  return Variable(Tensor(value), VariableOptions{.name = "x"});
}

std::vector<std::string> names(const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  for (const std::string& path : paths) names.push_back(std::filesystem::path(path).filename());
  return names;
}

TEST(CheckpointManager, RestoresTheOneSavedLast) {
  const std::string folder = empty_folder() + "/run";
  Variable x = scalar_variable(1);
  CheckpointManager manager(Checkpoint({x}), folder);
  EXPECT_EQ(manager.latest(), std::nullopt);
  EXPECT_FALSE(manager.restore_latest());
  EXPECT_THAT(manager.checkpoints(), IsEmpty());

  EXPECT_EQ(manager.save(9), folder + "/step_9.safetensors");
  x.assign(2.0);
  manager.save(10);
  EXPECT_EQ(manager.latest(), folder + "/step_10.safetensors");
  EXPECT_EQ(read_file(folder + "/latest"), "step_10.safetensors\n");

  Variable other = scalar_variable(0);
  const auto info = CheckpointManager(Checkpoint({other}), folder).restore_latest();
  ASSERT_TRUE(info);
  EXPECT_EQ(info->step, 10);
  EXPECT_EQ(other.value().item(), 2.0f);
}

TEST(CheckpointManager, KeepsTheNewestAndDeletesNothingElse) {
  const std::string folder = empty_folder();
  for (const char* foreign : {"step_x.safetensors", "step_.safetensors", "weights.safetensors",
                              "step_01.safetensors", "step_1.txt"}) {
    write_file_atomically(folder + "/" + foreign, "mine");
  }
  CheckpointManager manager(Checkpoint({scalar_variable(1)}), folder,
                            CheckpointManagerOptions{.max_to_keep = 2});
  for (std::int64_t step : {1, 2, 10, 9}) manager.save(step);
  // By number, not by letter; the one saved last is never deleted.
  EXPECT_THAT(names(manager.checkpoints()),
              ElementsAre("step_9.safetensors", "step_10.safetensors"));
  manager.save(3);
  EXPECT_THAT(names(manager.checkpoints()),
              ElementsAre("step_3.safetensors", "step_10.safetensors"));
  EXPECT_EQ(names({*manager.latest()}), std::vector<std::string>{"step_3.safetensors"});
  EXPECT_EQ(read_file(folder + "/step_01.safetensors"), "mine");
  EXPECT_EQ(read_file(folder + "/step_x.safetensors"), "mine");
  // 5 foreign files, 2 checkpoints, `latest`: no temporary file is left.
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder), {}), 8);
}

TEST(CheckpointManager, KeepsAllOrOne) {
  const std::string folder = empty_folder();
  CheckpointManager all(Checkpoint({scalar_variable(1)}), folder,
                        CheckpointManagerOptions{.max_to_keep = 0});
  for (std::int64_t step = 0; step < 8; ++step) all.save(step);
  EXPECT_EQ(all.checkpoints().size(), 8u);
  CheckpointManager one(Checkpoint({scalar_variable(1)}), folder,
                        CheckpointManagerOptions{.max_to_keep = 1});
  one.save(8);
  EXPECT_THAT(names(one.checkpoints()), ElementsAre("step_8.safetensors"));
}

TEST(CheckpointManager, RefusesWrongNumbers) {
  expect_error(ErrorCode::kInvalidArgument, {"max_to_keep", "-1"}, [] {
    CheckpointManager(Checkpoint(), "x", CheckpointManagerOptions{.max_to_keep = -1});
  });
  CheckpointManager manager(Checkpoint(), empty_folder());
  expect_error(ErrorCode::kInvalidArgument, {"step", "-3"}, [&] { manager.save(-3); });
}

TEST(CheckpointManager, SaysWhatIsThereWhenLatestNamesNothing) {
  const std::string folder = empty_folder();
  CheckpointManager manager(Checkpoint({scalar_variable(1)}), folder);
  manager.save(4);
  for (const char* content : {"step_5.safetensors", "", "../secret", "weights.safetensors"}) {
    write_file_atomically(folder + "/latest", content);
    expect_error(ErrorCode::kDataLoss, {folder + "/latest", "step_4.safetensors", content},
                 [&] { manager.latest(); });
  }
}

}  // namespace checkpoint_manager_test
}  // namespace tutti
