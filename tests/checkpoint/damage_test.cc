// Damaged versions: every flipped bit and every cut is found, and the version before is used.
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/version.h"
#include "core/file.h"
#include "core/hash.h"
#include "tests/checkpoint/saved_series.h"
#include "tutti/checkpoint/checkpoint_versions.h"
#include "tutti/core/logging.h"
#include "tutti/core/random.h"

namespace tutti {
namespace damage_test {

using checkpoint_test_util::expect_error;
using internal::Folder;
using saved_series::fast_folder;
using saved_series::restored_number;
using saved_series::Series;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

class Damage : public testing::Test {
 protected:
  void SetUp() override {
    previous_ = set_log_sink([this](LogLevel level, std::string_view line) {
      if (level >= LogLevel::kWarning) log_.emplace_back(line);
    });
    folder_ = fast_folder("damage");
    CheckpointManager manager(series_.checkpoint(), folder_);
    series_.save(manager, 1, 1);
    series_.save(manager, 2, 2);
    newest_ = folder_ + "/step_2";
    manifest_ = newest_ + "/manifest.json";
    tensors_ = newest_ + "/part_0_of_1.save_2.safetensors";
  }
  void TearDown() override {
    set_log_sink(previous_);
    std::filesystem::remove_all(folder_);
  }

  /// The newest version is refused with a message that names `path`; loading gives the one before.
  void expect_found(const std::string& path) {
    try {
      internal::read_version(Folder::open(newest_));
      ADD_FAILURE() << "not found";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDataLoss) << error.what();
      EXPECT_THAT(error.message(), HasSubstr(path));
    }
  }
  void expect_going_back(const std::string& path) {
    log_.clear();
    expect_found(path);
    EXPECT_EQ(restored_number(folder_), 1);
    EXPECT_THAT(log_, ElementsAre(AllOf(HasSubstr(path), HasSubstr("going back to"),
                                        HasSubstr(folder_ + "/step_1"))));
    CheckpointManager manager(series_.checkpoint(), folder_);
    expect_error(ErrorCode::kDataLoss, {path, "strict", "step_1' is whole"},
                 [&] { manager.restore_latest({.strict = true}); });
  }

  LogSink previous_;
  std::vector<std::string> log_;
  std::string folder_, newest_, manifest_, tensors_;
  Series series_;
};

void flip(const std::string& path, std::uint64_t bit) {
  std::string bytes = read_file(path);
  bytes.at(bit / 8) = static_cast<char>(bytes.at(bit / 8) ^ (1 << bit % 8));
  write_file_atomically(path, bytes);
}

TEST_F(Damage, OfTenThousandFlippedBitsEachIsFound) {
  const RandomStream random({.seed = 6});
  for (std::uint64_t i = 0; i < 10'000; ++i) {
    const std::string& path = random.below(3 * i, 2) == 0 ? manifest_ : tensors_;
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

TEST_F(Damage, EveryCutIsFound) {
  for (const std::string& path : {manifest_, tensors_}) {
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

// Of a file with several chunks, each cut at a page.
TEST_F(Damage, IsNamedByFileTensorAndOffset) {
  const Variable large(Tensor::full({600'000}, 0.5), VariableOptions{.name = "large"});
  CheckpointManager manager(Checkpoint({large}), folder_);
  const std::string version = manager.save(3);
  const std::string path = version + "/part_0_of_1.save_3.safetensors";
  const std::string bytes = read_file(path);
  for (std::size_t size = 0; size < bytes.size(); size += 4096) {
    std::filesystem::resize_file(path, size);
    expect_error(ErrorCode::kDataLoss, {path, concat(bytes.size()), concat(size)},
                 [&] { load_weights(version, {large}); });
  }
  write_file_atomically(path, bytes);
  const std::size_t head = bytes.size() - 2'400'000;
  const std::size_t second = head + internal::kDefaultChunkBytes;
  flip(path, 8 * (second + 17));
  expect_error(ErrorCode::kDataLoss,
               {path, concat("offset ", second), "tensor 'large' is damaged",
                concat("[", second, ", ", second + internal::kDefaultChunkBytes, ")")},
               [&] { load_weights(version, {large}); });
  flip(path, 8 * 20);
  EXPECT_THAT(verify_checkpoint(version), ElementsAre(HasSubstr("the header is damaged")));
  flip(path, 8 * 20);
  flip(path, 8 * (bytes.size() - 1));
  EXPECT_THAT(verify_checkpoint(version),
              ElementsAre(HasSubstr(concat("offset ", second)),
                          HasSubstr(concat("offset ", second + internal::kDefaultChunkBytes))));
}

TEST_F(Damage, OfAllVersionsIsAnError) {
  flip(tensors_, 8000);
  flip(folder_ + "/step_1/manifest.json", 800);
  expect_error(ErrorCode::kDataLoss, {"no checkpoint", folder_, tensors_, "step_1/manifest.json"},
               [&] { restored_number(folder_); });
}

TEST_F(Damage, MissingFilesAndLinksAreNotFollowed) {
  const std::string elsewhere = folder_ + "/elsewhere";
  std::filesystem::rename(tensors_, elsewhere);
  expect_going_back(tensors_);
  std::filesystem::create_symlink(elsewhere, tensors_);
  expect_going_back(tensors_);
  EXPECT_THAT(log_, ElementsAre(HasSubstr("got a symbolic link, which is not followed")));
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
  EXPECT_THAT(log_, ElementsAre(AllOf(HasSubstr(newest_), HasSubstr("is a symbolic link"))));
}

TEST_F(Damage, DoesNotCountAsAVersionToKeep) {
  CheckpointManager manager(series_.checkpoint(), folder_, {.max_to_keep = 2});
  flip(tensors_, 8000);
  EXPECT_EQ(manager.restore_latest()->step, 1);
  series_.save(manager, 3, 3);
  flip(folder_ + "/step_3/manifest.json", 800);
  EXPECT_EQ(restored_number(folder_), 1);  // still there
  series_.save(manager, 4, 4);
  EXPECT_EQ(restored_number(folder_), 4);
  flip(folder_ + "/step_4/part_0_of_1.save_4.safetensors", 8000);
  EXPECT_EQ(restored_number(folder_), 1);
}

TEST_F(Damage, OfASaveThatIsRepeatedIsMended) {
  flip(tensors_, 8000);
  CheckpointManager manager(series_.checkpoint(), folder_);
  EXPECT_EQ(manager.restore_latest()->step, 1);
  series_.save(manager, 2, 2);
  EXPECT_EQ(restored_number(folder_), 2);
}

// That is no damage: going back would lose steps in silence.
TEST_F(Damage, IsNotWhatAnotherProgramOrALaterFormatIs) {
  Variable other(Tensor::zeros({3}), VariableOptions{.name = "other"});
  CheckpointManager manager(Checkpoint({other}), folder_);
  expect_error(ErrorCode::kInvalidArgument, {newest_, "'other' is missing"},
               [&] { manager.restore_latest(); });
  const Folder folder = Folder::open(newest_);
  internal::Manifest manifest = *internal::read_manifest(folder);
  std::string text = internal::format_manifest(manifest);
  const std::size_t tail = text.rfind(",\n \"checksum\"");
  text = text.substr(0, tail);
  text.replace(text.find("\"version\": 1"), 12, "\"version\": 3");
  Hasher hasher;
  hasher.update(text);
  write_file_atomically(manifest_, text + ",\n \"checksum\": \"" + hasher.hex_digest() + "\"\n}\n");
  expect_error(ErrorCode::kUnimplemented, {manifest_, "later version"},
               [&] { restored_number(folder_); });
}

TEST_F(Damage, TwoWritersOfOneFolderAreRefused) {
  const Folder run = Folder::open(folder_);
  run.lock();
  CheckpointManager manager(series_.checkpoint(), folder_);
  expect_error(ErrorCode::kFailedPrecondition, {"another process", folder_},
               [&] { manager.save(3); });
}

}  // namespace damage_test
}  // namespace tutti
