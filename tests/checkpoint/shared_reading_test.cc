// Checkpoints that one process reads for several; tensors that are no variables; deleting all.
// SPDX-License-Identifier: Apache-2.0
#include <fstream>

#include "tests/checkpoint/checkpoint_test_util.h"
#include "tutti/checkpoint/checkpoint_manager.h"

namespace tutti::shared_reading_tests {
namespace {

using checkpoint_test_util::empty_folder;
using thrown::error_of;

Variable named(const char* name, double value) {
  return Variable(Tensor::full({3}, value), {.name = name});
}

/// What the process that writes has given, in order; the other takes it later.
struct Texts {
  std::vector<std::string> given;
  std::size_t taken = 0;

  CheckpointOptions writer() {
    return {.writes = true, .from_writer = [this](const std::string& own) {
              given.push_back(own);
              return own;
            }};
  }
  CheckpointOptions follower() {
    return {.writes = false,
            .from_writer = [this](const std::string&) { return given.at(taken++); }};
  }
};

TEST(SharedReading, AllRestoreTheVersionThatTheWriterChose) {
  const std::string folder = empty_folder();
  Texts texts;
  Variable at_writer = named("x", 1.0), at_follower = named("x", 9.0);
  CheckpointManager writer(Checkpoint({at_writer}, texts.writer()), folder);
  writer.save(5);
  CheckpointManager follower(Checkpoint({at_follower}, texts.follower()), folder + "-elsewhere");
  at_writer.assign(7.0);
  const auto chosen = writer.restore_latest();
  const auto followed = follower.restore_latest();
  ASSERT_TRUE(chosen && followed);
  EXPECT_EQ(followed->step, 5);
  EXPECT_EQ(followed->path, chosen->path);
  EXPECT_EQ(followed->sequence, chosen->sequence);
  EXPECT_EQ(at_writer.value().to_doubles(), (std::vector<double>{1, 1, 1}));
  EXPECT_EQ(at_follower.value().to_doubles(), (std::vector<double>{1, 1, 1}));
  EXPECT_FALSE(std::filesystem::exists(folder + "-elsewhere"));
  EXPECT_EQ(texts.taken, texts.given.size());
}

TEST(SharedReading, NothingToRestoreIsNothingForAll) {
  Texts texts;
  CheckpointManager writer(Checkpoint({}, texts.writer()), empty_folder());
  CheckpointManager follower(Checkpoint({}, texts.follower()), empty_folder());
  EXPECT_FALSE(writer.restore_latest());
  EXPECT_FALSE(follower.restore_latest());
  EXPECT_EQ(texts.taken, texts.given.size());
}

TEST(SharedReading, AnErrorOfTheWriterIsThrownByAll) {
  const std::string folder = empty_folder();
  Texts texts;
  Checkpoint writer({named("x", 1.0)}, texts.writer());
  Checkpoint follower({named("x", 1.0)}, texts.follower());
  const std::string error = error_of([&] { writer.restore(folder + "/none.safetensors"); });
  EXPECT_THAT(error, ::testing::HasSubstr("none.safetensors"));
  EXPECT_EQ(error_of([&] { follower.restore("its own path does not count"); }), error);
  EXPECT_EQ(texts.taken, texts.given.size());
}

TEST(CheckpointTensors, AreSavedByNameAndSetBackWithTheRest) {
  const std::string folder = empty_folder();
  Variable x = named("x", 1.0);
  Tensor kept = Tensor::full({2}, 4.0);
  bool refuses = false;
  Checkpoint checkpoint({x});
  checkpoint.add_tensors("kept", {[&] {
                                    return std::vector<NamedTensor>{{"a", kept}};
                                  },
                                  [&](const TensorLookup& lookup) {
                                    kept = lookup("a");
                                    EXPECT_FALSE(lookup("x").defined()) << "not its own";
                                    if (std::exchange(refuses, false)) {
                                      fail(ErrorCode::kInvalidArgument, "refused");
                                    }
                                  }});
  checkpoint.save(folder + "/a.safetensors");
  kept = Tensor::full({2}, 5.0);
  x.assign(2.0);
  refuses = true;
  EXPECT_ERROR(checkpoint.restore(folder + "/a.safetensors"), kInvalidArgument, "refused");
  EXPECT_EQ(kept.to_doubles()[0], 5.0);
  EXPECT_EQ(x.value().to_doubles()[0], 2.0);
  checkpoint.restore(folder + "/a.safetensors");
  EXPECT_EQ(kept.to_doubles()[0], 4.0);
  EXPECT_EQ(x.value().to_doubles()[0], 1.0);
  EXPECT_ERROR(Checkpoint({x}).restore(folder + "/a.safetensors"), kInvalidArgument,
               "unknown tensor 'kept/a'");
  EXPECT_ERROR(checkpoint.add_tensors("kept", {}), kInvalidArgument, "expected functions");
}

TEST(CheckpointManagerDeleteAll, LeavesWhatIsNoVersion) {
  const std::string folder = empty_folder();
  CheckpointManager manager(Checkpoint({named("x", 1.0)}), folder, {.asynchronous = true});
  manager.delete_all();  // nothing is there
  manager.save(1);
  manager.save(2);
  std::ofstream(folder + "/notes.txt") << "mine";
  manager.delete_all();
  EXPECT_TRUE(manager.checkpoints().empty());
  EXPECT_FALSE(std::filesystem::exists(folder + "/step_2"));
  EXPECT_TRUE(std::filesystem::exists(folder + "/notes.txt"));
  std::filesystem::remove(folder + "/notes.txt");
  manager.save(3);
  manager.delete_all();
  EXPECT_FALSE(std::filesystem::exists(folder));
}

}  // namespace
}  // namespace tutti::shared_reading_tests
