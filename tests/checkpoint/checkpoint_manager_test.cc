// Tests checkpoint folders: finding the newest version, and deleting old ones.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/checkpoint/checkpoint_manager.h"

#include "core/file.h"
#include "tests/checkpoint/saved_series.h"
#include "tutti/tensor/numerics.h"

namespace tutti::testing::checkpoint_manager_test {

Variable scalar_variable(float value) {
  return Variable(Tensor(value), VariableOptions{.name = "x"});
}

std::vector<std::string> names(const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  for (const std::string& path : paths) names.push_back(std::filesystem::path(path).filename());
  return names;
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

TEST(CheckpointManager, RestoresLastSavedVersion) {
  const std::string folder = empty_folder() + "/new/run";
  Variable x = scalar_variable(1);
  CheckpointManager manager(Checkpoint({x}), folder);
  EXPECT_EQ(manager.latest(), std::nullopt);
  EXPECT_FALSE(manager.restore_latest());
  EXPECT_THAT(manager.checkpoints(), IsEmpty());

  EXPECT_EQ(manager.save(9), folder + "/step_9");
  x.assign(2.0);
  manager.save(10);
  EXPECT_EQ(manager.latest(), folder + "/step_10");

  Variable other = scalar_variable(0);
  const auto info = CheckpointManager(Checkpoint({other}), folder).restore_latest();
  ASSERT_TRUE(info);
  EXPECT_EQ(info->step, 10);
  EXPECT_EQ(info->sequence, 2);
  EXPECT_EQ(info->path, folder + "/step_10");
  EXPECT_EQ(info->numerics, numerics_fingerprint());
  EXPECT_EQ(other.value().item(), 2.0f);
  // load_weights() also accepts a version's folder, its index, and the file that other programs
  // read.
  other.assign(0.0);
  for (const char* path : {"/step_9", "/step_9/model.safetensors.index.json"}) {
    other.assign(0.0);
    EXPECT_EQ(load_weights(folder + path, {other}).step, 9);
    EXPECT_EQ(other.value().item(), 1.0f);
  }
  other.assign(0.0);
  load_weights(folder + "/step_10/model-00001-of-00001.safetensors", {other});
  EXPECT_EQ(other.value().item(), 2.0f);
}

// When training returns to an earlier step, the newest version does not have the largest step.
TEST(CheckpointManager, KeepsNewestVersionsAndUnrelatedFiles) {
  const std::string folder = empty_folder();
  for (const char* foreign : {"step_x", "step_", "weights.safetensors", "step_01", "step_1.txt"}) {
    write_file_atomically(folder + "/" + foreign, "mine");
  }
  std::filesystem::create_directory(folder + "/step_07");
  CheckpointManager manager(Checkpoint({scalar_variable(1)}), folder,
                            CheckpointManagerOptions{.max_to_keep = 2});
  for (std::int64_t step : {1, 2, 10, 9}) manager.save(step);
  EXPECT_THAT(names(manager.checkpoints()), ElementsAre("step_10", "step_9"));
  manager.save(3);
  EXPECT_THAT(names(manager.checkpoints()), ElementsAre("step_9", "step_3"));
  EXPECT_EQ(names({*manager.latest()}), std::vector<std::string>{"step_3"});
  manager.save(9);  // replaces the version of step 9
  EXPECT_THAT(names(manager.checkpoints()), ElementsAre("step_3", "step_9"));
  EXPECT_THAT(names_in(folder + "/step_9"),
              ElementsAre("model-00001-of-00001.save_6.safetensors", "model.safetensors.index.json",
                          "state.save_6.json"));
  EXPECT_EQ(read_file(folder + "/step_01"), "mine");
  EXPECT_EQ(read_file(folder + "/step_x"), "mine");
  EXPECT_EQ(names_in(folder).size(), 8u);  // 6 unrelated entries and 2 versions
}

TEST(CheckpointManager, KeepsUnrelatedFilesInVersionFolders) {
  const std::string folder = empty_folder();
  CheckpointManager manager(Checkpoint({scalar_variable(1)}), folder,
                            CheckpointManagerOptions{.max_to_keep = 1});
  const std::vector<std::string> foreign = {"model-1-of-2.safetensors", "model-fp16.safetensors",
                                            "part_0.safetensors",       "state.backup.json",
                                            "state.save_1.json.old",    "state.save_x.json"};
  manager.save(1);
  std::filesystem::create_directory(folder + "/step_7");  // as left by an interrupted save
  for (const char* ours : {"model-00001-of-00002.save_12.safetensors", "state.save_12.json",
                           "part_0_of_2.save_3.safetensors", "model.safetensors.index.json.tmp"}) {
    write_file_atomically(concat(folder, "/step_7/", ours), "ours");
  }
  for (const std::string& name : foreign) {
    write_file_atomically(folder + "/step_1/" + name, "mine");
    write_file_atomically(folder + "/step_7/" + name, "mine");
  }
  manager.save(1);
  EXPECT_EQ(names_in(folder + "/step_1").size(), foreign.size() + 3);
  EXPECT_EQ(names_in(folder + "/step_7"), foreign);
  manager.save(2);
  EXPECT_EQ(names_in(folder + "/step_1"), foreign);
}

TEST(CheckpointManager, MaxToKeepAcceptsZeroAndOneAndRefusesNegative) {
  const std::string folder = empty_folder();
  CheckpointManager all(Checkpoint({scalar_variable(1)}), folder,
                        CheckpointManagerOptions{.max_to_keep = 0});
  for (std::int64_t step = 0; step < 8; ++step) all.save(step);
  EXPECT_EQ(all.checkpoints().size(), 8u);
  CheckpointManager one(Checkpoint({scalar_variable(1)}), folder,
                        CheckpointManagerOptions{.max_to_keep = 1});
  one.save(8);
  EXPECT_THAT(names(one.checkpoints()), ElementsAre("step_8"));
  EXPECT_INVALID(CheckpointManager(Checkpoint(), "x", CheckpointManagerOptions{.max_to_keep = -1}),
                 "max_to_keep", "-1");
  CheckpointManager manager(Checkpoint(), empty_folder());
  EXPECT_INVALID(manager.save(-3), "step", "-3");
}

// Reads a folder of an older release, in which each version was a single file.
TEST(CheckpointManager, ContinuesFromSingleFileCheckpoints) {
  const std::string folder = empty_folder();
  Variable x = scalar_variable(0);
  const Checkpoint checkpoint({x});
  for (const int step : {3, 4, 20}) {
    x.assign(step);
    checkpoint.save(concat(folder, "/step_", step, ".safetensors"), step);
  }
  write_file_atomically(folder + "/latest", "step_4.safetensors\n");
  CheckpointManager manager(checkpoint, folder, CheckpointManagerOptions{.max_to_keep = 2});
  EXPECT_THAT(names(manager.checkpoints()),
              ElementsAre("step_3.safetensors", "step_20.safetensors", "step_4.safetensors"));
  EXPECT_EQ(manager.restore_latest()->step, 4);
  EXPECT_EQ(x.value().item(), 4.0f);
  manager.save(5);
  EXPECT_THAT(names(manager.checkpoints()), ElementsAre("step_4.safetensors", "step_5"));
  EXPECT_TRUE(std::filesystem::exists(folder + "/latest"));
  manager.save(6);
  EXPECT_THAT(names_in(folder), ElementsAre("step_5", "step_6"));
}

TEST(CheckpointManager, RestoresLargestStepWhenLatestFileIsInvalid) {
  const std::string folder = empty_folder();
  Variable x = scalar_variable(0);
  for (const int step : {3, 20}) {
    Checkpoint({x}).save(concat(folder, "/step_", step, ".safetensors"), step);
  }
  for (const char* content : {"step_5.safetensors", "", "../secret", "weights.safetensors"}) {
    write_file_atomically(folder + "/latest", content);
    EXPECT_EQ(CheckpointManager(Checkpoint({x}), folder).restore_latest()->step, 20);
  }
}

TEST(CheckpointManager, WritesNoFilesIfOptionDisablesWriting) {
  const std::string folder = empty_folder();
  Variable x = scalar_variable(1);
  int num_state_calls = 0;
  Checkpoint follower({x}, CheckpointOptions{.writes = false});
  follower.add_state("s", {[&] { return Json(++num_state_calls); }, [](const Json&) {}});
  CheckpointManager manager(follower, folder);
  EXPECT_EQ(manager.save(1), folder + "/step_1");
  EXPECT_EQ(num_state_calls, 1);  // followers also save states, because saving may be collective
  follower.save(folder + "/single.safetensors");
  save_weights(folder + "/weights.safetensors", {x}, {.writes = false});
  EXPECT_THAT(names_in(folder), IsEmpty());

  Checkpoint writer({x});
  writer.add_state("s", {[] { return Json(7); }, [](const Json&) {}});
  writer.set_about("strategy", "mirrored");
  CheckpointManager(writer, folder).save(2);
  const auto info = manager.restore_latest();
  EXPECT_EQ(info->step, 2);
  EXPECT_EQ(info->about.at("strategy").as_string(), "mirrored");
}

// save() copies the values before it returns, so later updates do not change the checkpoint.
TEST(CheckpointManager, AsyncSaveStoresValuesAtTimeOfCall) {
  const std::string folder = empty_folder();
  Variable large(Tensor::zeros({1 << 20}), VariableOptions{.name = "large"});
  {
    CheckpointManager manager(Checkpoint({large}), folder,
                              {.max_to_keep = 3, .asynchronous = true});
    for (int step = 1; step <= 6; ++step) {
      large.assign(step);
      manager.save(step);  // waits for the previous save, because only one runs at a time
      for (int i = 0; i < 5; ++i) large.assign_add(0.125);
    }
  }  // the destructor waits for the last save
  EXPECT_THAT(names_in(folder), ElementsAre("step_4", "step_5", "step_6"));
  CheckpointManager manager(Checkpoint({large}), folder, {.asynchronous = true});
  for (const int step : {4, 5, 6}) {
    load_weights(concat(folder, "/step_", step), {large});
    const std::vector<double> values = large.value().to_doubles();
    EXPECT_EQ(std::count(values.begin(), values.end(), step), 1 << 20);
  }
  large.assign(7.0);
  manager.save(7);
  EXPECT_EQ(manager.restore_latest()->step, 7);  // restore_latest() also waits for the save
}

}  // namespace tutti::testing::checkpoint_manager_test
