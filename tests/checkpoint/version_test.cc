// Tests versions that consist of several files, versions that several workers save and read
// together, and invalid index files.
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/version.h"

#include <algorithm>

#include "checkpoint/run_folder.h"
#include "core/file.h"
#include "tests/checkpoint/saved_series.h"
#include "tests/support/ranks.h"
#include "tests/support/warnings.h"
#include "tutti/checkpoint/checkpoint_versions.h"
#include "tutti/core/sync.h"

namespace tutti::testing::version_test {
using file_faults::Action;
using internal::CheckpointFile;
using internal::CheckpointWorker;
using internal::Folder;
using internal::VersionIndex;

constexpr std::int64_t kElements = 30;
const Shape kShape{10, 3};

/// Returns elements [first, end) of a table whose element i has value i, in tensors of at most 5
/// elements.
TensorPart part_of_table(std::int64_t first, std::int64_t end) {
  TensorPart part{"table", kShape, DType::kFloat32, first};
  for (std::int64_t i = first; i < end; i += 5) {
    std::vector<float> values;
    for (std::int64_t j = i; j < std::min(i + 5, end); ++j) values.push_back(static_cast<float>(j));
    const auto count = static_cast<std::int64_t>(values.size());
    part.values.push_back(Tensor::from(Shape{count}, values));
  }
  return part;
}

/// Writes the file of process `index`, out of `count` processes; process 0 also writes a scalar.
VersionIndex write_file(const Folder& folder, int index, int count) {
  CheckpointFile file;
  file.parts["table"] = part_of_table(kElements * index / count, kElements * (index + 1) / count);
  if (index == 0) file.tensors["scalar"] = Tensor(2.5f);
  return internal::write_tensors(folder, internal::tensor_file_name(index, count, ""), file);
}

VersionIndex joined(const std::vector<VersionIndex>& files) {
  VersionIndex index;
  index.step = 5;
  index.sequence = 3;
  index.state_file = "state.json";
  for (const VersionIndex& file : files) internal::add_files(index, file);
  return index;
}

VersionIndex commit(const Folder& folder, const std::vector<VersionIndex>& files) {
  CheckpointFile values;
  values.states["s"] = Json(7);
  return internal::commit_version(folder, joined(files), values);
}

TEST(Version, ReadsSeveralFilesCompletelyOrByRange) {
  std::vector<double> expected;
  for (int i = 0; i < kElements; ++i) expected.push_back(i);
  for (const int count : {1, 2, 3, 4, 11, 30, 31}) {
    SCOPED_TRACE(count);
    const Folder folder = Folder::make(concat(empty_folder(), "/v", count));
    std::vector<VersionIndex> files;
    // the order of files does not matter
    for (int i = count; i-- > 0;) files.push_back(write_file(folder, i, count));
    EXPECT_ERROR(internal::read_version(folder), kNotFound, internal::kIndexName, "never finished");
    const VersionIndex committed = commit(folder, files);
    EXPECT_TRUE(internal::read_index(folder) == committed);
    const CheckpointFile file = internal::read_version(folder);
    EXPECT_EQ(file.info.step, 5);
    EXPECT_EQ(file.info.sequence, 3);
    EXPECT_EQ(file.states.at("s").as_int(), 7);
    EXPECT_EQ(file.tensors.at("scalar").item(), 2.5f);
    EXPECT_EQ(file.tensors.at("table").shape(), kShape);
    EXPECT_EQ(file.tensors.at("table").to_doubles(), expected);
    EXPECT_THAT(verify_checkpoint(folder.path()), IsEmpty());
    for (const auto& [first, end] : std::vector<std::pair<int, int>>{
             {0, 30}, {0, 1}, {29, 30}, {3, 3}, {4, 8}, {5, 21}, {8, 30}}) {
      const TensorPart wanted{
          "table", kShape, DType::kFloat32, first, {Tensor::zeros({end - first})}};
      const CheckpointFile some = internal::read_version(folder, {{"table", wanted}});
      EXPECT_EQ(some.tensors.size(), 1u);
      const TensorPart& part = some.parts.at("table");
      EXPECT_EQ(part.first, first);
      EXPECT_EQ(part.values.at(0).to_doubles(),
                std::vector<double>(expected.begin() + first, expected.begin() + end));
    }
    const TensorPart other{"table", Shape{3, 10}, DType::kFloat32, 0, {Tensor::zeros({4})}};
    EXPECT_TRUE(internal::read_version(folder, {{"table", other}}).tensors.contains("table"));
  }
}

/// Checks that other programs find every unsplit tensor through the index, which has Hugging Face's
/// format.
TEST(Version, HasHuggingFaceIndex) {
  const Folder folder = Folder::make(empty_folder());
  commit(folder, {write_file(folder, 0, 2), write_file(folder, 1, 2)});
  const Json index = Json::parse(read_file(folder.path() + "/model.safetensors.index.json"));
  EXPECT_EQ(index.at("metadata").at("total_size").as_int(), 31 * 4);
  EXPECT_EQ(index.at("weight_map").dump(), R"({"scalar":"model-00001-of-00002.safetensors"})");
  EXPECT_EQ(index.at("parts").dump(), R"({"table":{"dtype":"F32","shape":[10,3],"elements":{)"
                                      R"("model-00001-of-00002.safetensors":[0,15],)"
                                      R"("model-00002-of-00002.safetensors":[15,30]}}})");
  EXPECT_THAT(folder.names(),
              ElementsAre("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors",
                          "model.safetensors.index.json", "state.json"));
}

TEST(Version, CommitRefusesMissingDuplicateAndInconsistentElements) {
  const Folder folder = Folder::make(empty_folder());
  const VersionIndex first = write_file(folder, 0, 3), second = write_file(folder, 1, 3);
  EXPECT_ERROR(commit(folder, {first, second}), kDataLoss, "'table'",
               "[0, 30) exactly once, got [0, 10), [10, 20)");
  EXPECT_ERROR(commit(folder, {second}), kDataLoss, "'table'", "exactly once, got [10, 20)");
  VersionIndex copy;  // claims the same elements as the first file
  copy.parts["table"] = {DType::kFloat32, kShape, {{"copy.safetensors", {0, 10}}}};
  EXPECT_ERROR(commit(folder, {first, copy, second, write_file(folder, 2, 3)}), kDataLoss,
               "'table'", "exactly once");
  VersionIndex whole;
  whole.weight_map["table"] = "copy.safetensors";
  EXPECT_ERROR(commit(folder, {first, whole, second, write_file(folder, 2, 3)}), kDataLoss,
               "'table'", "all in one file");
  EXPECT_INVALID(joined({whole, whole}), "'table'", "copy.safetensors", "once");
  VersionIndex other = second;
  other.parts["table"].shape = Shape{30};
  EXPECT_INVALID(joined({first, other}), "'table'", "00001-of-00003", "00002-of-00003", "[30]");
  EXPECT_FALSE(internal::read_index(folder));
}

TEST(Version, RoundTripsEmptyTensorsAndEveryType) {
  const Folder folder = Folder::make(empty_folder());
  CheckpointFile file;
  file.tensors = {{"none", Tensor::zeros({0, 4})},
                  {"flags", Tensor::full({3}, 1, DType::kBool)},
                  {"half", Tensor::full({2, 2}, 1.5, DType::kFloat16)},
                  {"count", Tensor::from<std::int64_t>({}, {-9007199254740993})},
                  {"q\"uo\\te \xC3\xBC/..", Tensor::ones({1})}};
  commit(folder, {internal::write_tensors(folder, "model-00001-of-00001.safetensors", file)});
  const CheckpointFile read = internal::read_version(folder);
  ASSERT_EQ(read.tensors.size(), file.tensors.size());
  for (const auto& [name, tensor] : file.tensors) {
    EXPECT_EQ(read.tensors.at(name).to_string(), tensor.to_string());
    EXPECT_EQ(read.tensors.at(name).shape(), tensor.shape());
  }
}

/// Change that makes a valid index invalid, and fragments of the expected error.
struct Lie {
  std::string from, to;
  std::vector<std::string> parts;
};

// Every index has a valid checksum, as if its invalid entry had been written on purpose.
TEST(VersionIndex, InvalidEntriesAreRefused) {
  const Folder folder = Folder::make(empty_folder());
  const VersionIndex index = commit(folder, {write_file(folder, 0, 2), write_file(folder, 1, 2)});
  Json::Object members = Json::parse(internal::format_index(index)).as_object();
  members.pop_back();
  const std::string body = Json(members).dump();
  const std::string name = "\"model-00001-of-00002.safetensors\":{";
  const std::vector<Lie> lies = {
      {name, "\"../../etc/passwd\":{", {"file name", "../../etc/passwd"}},
      {name, "\"/etc/passwd\":{", {"file name", "/etc/passwd"}},
      {name, "\"..\":{", {"file name"}},
      {name, "\"\":{", {"file name"}},
      {name, "\".hidden\":{", {"file name"}},
      {name, "\"a\\u0000b\":{", {"file name"}},
      {name, "\"model.safetensors.index.json\":{", {"file name"}},
      {name, "\"x\":{", {"tensor files", "model-00001-of-00002"}},
      {"\"state\":\"state.json\"", "\"state\":\"none.json\"", {"'state'", "none.json"}},
      {"[15,30]", "[15,15],\"state.json\":[15,30]", {"tensor files", "state.json"}},
      {"\"tutti checkpoint\"", "\"zip\"", {"'zip'"}},
      {"\"step\":5", "\"step\":-5", {"'step'", "-5"}},
      {"\"step\":5", "\"step\":5.5", {"64-bit integer"}},
      {"\"step\":5", "\"stop\":5", {"step"}},
      {"\"sequence\":3", "\"sequence\":99999999999999999999", {}},
      {"\"sequence\":3", "\"sequence\":0", {"sequence number from 1", "got 0"}},
      {"\"sequence\":3", "\"sequence\":4611686018427387905", {"got 4611686018427387905"}},
      {"\"bytes\":", "\"bytes\":-", {"'bytes'", "-"}},
      {"\"xxh3\":", "\"xxh4\":", {"xxh3"}},
      {"\"F32\"", "\"F31\"", {"'F31'"}},
      {"[10,3]", "[-10,3]", {"-10"}},
      {"[10,3]", "[4611686018427387904,3]", {"more elements"}},
      {"[10,3]", "[1,1,1,1,1,1,1,1,1,1,1,1]", {"dimensions"}},
      {"[10,3]", "[10,4]", {"'table'", "[0, 40) exactly once"}},
      {"[15,30]", "[15,31]", {"[0, 30]", "31"}},
      {"[15,30]", "[15,14]", {"[15, 14]"}},
      {"[15,30]", "[-1,30]", {"[-1, 30]"}},
      {"[15,30]", "[15]", {"a range [begin, end]"}},
      {"[15,30]", "[16,30]", {"'table'", "[0, 15), [16, 30)"}},
      {"\"scalar\"", "\"table\"", {"'table'", "all in one file"}},
      {"\"parts\":{", "\"pieces\":{", {"parts"}},
  };
  const auto sealed = [](const std::string& text) { return internal::sealed(Json::parse(text)); };
  EXPECT_EQ(internal::parse_index(sealed(body), "m"), index);
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.to);
    std::string lying = body;
    const std::size_t at = lying.find(lie.from);
    ASSERT_NE(at, std::string::npos) << lie.from << " in\n" << body;
    lying.replace(at, lie.from.size(), lie.to);
    std::vector<std::string> parts = lie.parts;
    parts.push_back("some/index.json: ");
    expect_error(ErrorCode::kDataLoss, parts,
                 [&] { internal::parse_index(sealed(lying), "some/index.json"); });
  }
}

// The checksums are valid, but the header of a file differs from the index, so reading fails before
// it allocates memory.
TEST(VersionIndex, MismatchWithFilesIsRefused) {
  const Folder folder = Folder::make(empty_folder());
  const std::vector<VersionIndex> files = {write_file(folder, 0, 2), write_file(folder, 1, 2)};
  const auto expect_refused = [&](const std::function<void(VersionIndex&)>& change) {
    std::vector<VersionIndex> changed = files;
    change(changed[1]);
    commit(folder, changed);
    const std::vector<std::string> parts = {"00002-of-00002", "tensors that"};
    expect_error(ErrorCode::kDataLoss, parts, [&] { internal::read_version(folder); });
    EXPECT_EQ(verify_checkpoint(folder.path()).size(), 1u);
  };
  const std::string second = internal::tensor_file_name(1, 2, "");
  expect_refused([&](VersionIndex& index) { index.weight_map["more"] = second; });
  expect_refused([&](VersionIndex& index) {
    index.parts["more"] = {DType::kInt64, Shape{1}, {{second, {0, 1}}}};
  });
}

TEST(Version, CommitRefusesSequenceAboveMaximum) {
  const Folder folder = Folder::make(empty_folder());
  VersionIndex index = joined({write_file(folder, 0, 1)});
  index.sequence = internal::kMaxSequence + 1;
  EXPECT_ERROR(internal::commit_version(folder, index, {}), kFailedPrecondition, folder.path(),
               "4611686018427387905");
  EXPECT_FALSE(internal::read_index(folder));
}

// A worker whose parts are all empty writes a file without tensors.
TEST(Version, FileWithoutTensorsIsVerified) {
  const Folder folder = Folder::make(empty_folder());
  const std::string name = internal::tensor_file_name(1, 2, "");
  commit(folder, {write_file(folder, 0, 1), internal::write_tensors(folder, name, {})});
  internal::read_version(folder);
  const std::string path = folder.path_of(name);
  std::string bytes = read_file(path);
  bytes[bytes.find("step")] = 'S';
  write_file_atomically(path, bytes);
  EXPECT_ERROR(internal::read_version(folder), kDataLoss, path, "checksum");
}

TEST(Version, ErrorNamesOffsetOfInvalidBool) {
  const Folder folder = Folder::make(empty_folder());
  CheckpointFile file;
  file.tensors["flags"] = Tensor::full({3 << 20}, 1, DType::kBool);
  const std::string name = internal::tensor_file_name(0, 1, "");
  commit(folder, {internal::write_tensors(folder, name, file)});
  std::string bytes = read_file(folder.path_of(name));
  bytes.back() = 2;
  write_file_atomically(folder.path_of(name), bytes);
  EXPECT_ERROR(internal::read_version(folder), kDataLoss, concat("offset ", bytes.size() - 1, ":"),
               "'flags'", "got 2");
}

TEST(Folder, SystemErrorInSizeQueryIsReported) {
  const Folder folder = Folder::make(empty_folder());
  EXPECT_EQ(folder.size_of("none"), std::nullopt);
  const std::string name(300, 'a');
  EXPECT_ERROR(folder.size_of(name), kUnavailable, name, "too long");
}

TEST(Version, EarlierFormatIsRefused) {
  const std::string folder = empty_folder();
  write_file_atomically(folder + "/manifest.json", "{}");
  for (const auto& read : std::vector<std::function<void()>>{
           [&] { internal::read_version(Folder::open(folder)); },
           [&] { verify_checkpoint(folder); }, [&] { describe_checkpoint(folder); }}) {
    expect_error(ErrorCode::kUnimplemented,
                 {folder, "manifest.json", "call Checkpoint::restore()", "commit 90f32457"}, read);
  }
}

constexpr std::int64_t kElementsOfAll = 500;

/// Group of workers that run as threads; exchange() returns the strings of all workers.
class Workers {
 public:
  explicit Workers(int count) : texts_(static_cast<std::size_t>(count)) {}
  int count() const { return static_cast<int>(texts_.size()); }
  CheckpointWorker self(int number) {
    return {number, [this, number](const std::string& own) { return exchange(number, own); }};
  }
  /// Makes exchange `call` (1, 2, ...) and later exchanges fail, as if worker `number` had exited.
  void lose(int number, int call) {
    lost_ = number;
    lost_at_ = call;
  }

 private:
  std::vector<std::string> exchange(int number, const std::string& own) {
    MutexLock lock(mutex_);
    const int call = num_calls_ + 1;
    if (call >= lost_at_) {
      condition_.notify_all();
      fail(ErrorCode::kUnavailable, "worker ", lost_, " exited");
    }
    texts_[static_cast<std::size_t>(number)] = own;
    if (++num_here_ == count()) {
      given_ = texts_;
      num_here_ = 0;
      num_calls_ = call;
      condition_.notify_all();
    }
    const bool ended =
        condition_.wait_for(mutex_, std::chrono::seconds(60), [&] { return num_calls_ >= call; });
    if (!ended)
      fail(ErrorCode::kDeadlineExceeded,
           "timed out after 60 s waiting for all workers to join exchange ", call);
    return given_;
  }

  Mutex mutex_;
  CondVar condition_;
  std::vector<std::string> texts_, given_;
  int num_here_ = 0, num_calls_ = 0;
  int lost_ = -1, lost_at_ = 1 << 30;
};

/// Returns the part that worker `worker` of `count` workers contributes to save `number`. All
/// elements have the value `number`. "cut" is split across all workers, the last worker has all of
/// "few", and each worker has "whole" and the state.
CheckpointFile values_of(int worker, int count, std::int64_t number, std::int64_t step) {
  CheckpointFile file;
  file.info.step = step;
  file.states["number"] = Json(number);
  const std::int64_t first = kElementsOfAll * worker / count;
  const std::int64_t size = kElementsOfAll * (worker + 1) / count - first;
  const auto value = static_cast<double>(number);
  const Tensor half = Tensor::full({size / 2}, value),
               rest = Tensor::full({size - size / 2}, value);
  file.parts["cut"] = {"cut", Shape{20, 25}, DType::kFloat32, first, {half, rest}};
  file.tensors["whole"] = Tensor::full({7}, value);
  // Only the last worker has elements of this tensor.
  const Tensor few = Tensor::full({worker == count - 1 ? 3 : 0}, value);
  file.parts["few"] = {"few", Shape{3}, DType::kFloat32, worker == count - 1 ? 0 : 3, {few}};
  file.parts["none"] = {"none", Shape{4, 0}, DType::kFloat32, 0, {Tensor::zeros({0})}};
  return file;
}

/// Saves on all workers concurrently and returns their errors.
std::vector<std::string> save_together(Workers& workers, const std::vector<std::string>& folders,
                                       std::int64_t number, std::int64_t step) {
  return errors_of_ranks(workers.count(), [&](int worker) {
    const CheckpointFile file = values_of(worker, workers.count(), number, step);
    internal::save_version(folders[static_cast<std::size_t>(worker)], file, {2, {}},
                           workers.self(worker));
  });
}
std::vector<std::string> save_together(int count, const std::string& folder, std::int64_t number,
                                       std::int64_t step) {
  Workers workers(count);
  return save_together(workers, std::vector<std::string>(static_cast<std::size_t>(count), folder),
                       number, step);
}

/// Returns the number of the save if all values of the version agree, or -1 if they belong to
/// different saves.
std::int64_t number_in(const CheckpointFile& file) {
  const std::int64_t number = file.states.at("number").as_int();
  for (const char* name : {"cut", "few", "whole"}) {
    for (const double value : file.tensors.at(name).to_doubles()) {
      if (value != static_cast<double>(number)) return -1;
    }
  }
  return number;
}

/// Verifies all complete versions; returns the save number of the newest, or nullopt if there is
/// none.
std::optional<std::int64_t> newest_number(const std::string& folder) {
  std::optional<std::int64_t> number;
  const auto run = internal::Folder::open_if_there(folder);
  if (!run) return number;
  for (const internal::FoundVersion& version : internal::find_versions(*run)) {
    if (version.shown.state != VersionState::kWhole) continue;
    EXPECT_THAT(verify_checkpoint(version.shown.path), IsEmpty());
    number = number_in(internal::read_checkpoint(version.shown.path));
  }
  return number;
}

std::size_t num_files(const std::string& folder) {
  namespace fs = std::filesystem;
  return static_cast<std::size_t>(std::distance(fs::recursive_directory_iterator(folder), {}));
}

TEST(ShardedVersion, FilesOfAllWorkersFormOneVersion) {
  const std::string folder = empty_folder();
  for (const int count : {1, 2, 3, 4, 7}) {
    EXPECT_THAT(save_together(count, folder, count, 5), Each(""));
    EXPECT_EQ(newest_number(folder), count);
    const Json shown = describe_checkpoint(folder + "/step_5");
    const auto num_tensor_files = static_cast<std::size_t>(count == 1 ? 1 : count + 1);
    EXPECT_EQ(shown.at("files").as_array().size(), num_tensor_files + 1);  // + 1 for the state
    EXPECT_EQ(shown.at("tensors").as_array().size(), 4u);
    // + 3 for the folder, the index and the state
    EXPECT_EQ(num_files(folder), num_tensor_files + 3);
  }
}

TEST(ShardedVersion, OldVersionsAreDeletedWithAllFiles) {
  const std::string folder = empty_folder();
  for (int step = 1; step <= 4; ++step) EXPECT_THAT(save_together(3, folder, step, step), Each(""));
  EXPECT_EQ(num_files(folder), 2u * 7u);
  EXPECT_EQ(list_checkpoints(folder).size(), 2u);
  internal::delete_versions(folder);
  EXPECT_FALSE(std::filesystem::exists(folder));
}

TEST(ShardedVersion, WorkersWithDifferentFoldersFailAndWriteNoFiles) {
  const std::string folder = empty_folder(), other = folder + "_of_2";
  std::filesystem::remove_all(other);
  EXPECT_THAT(save_together(3, folder, 1, 1), Each(""));
  for (const bool has_that_step : {false, true}) {
    if (has_that_step) std::filesystem::create_directories(other + "/step_2");
    Workers workers(3);
    EXPECT_THAT(save_together(workers, {folder, folder, other}, 2, 2),
                Each(AllOf(HasSubstr("worker 2"), HasSubstr("another folder"),
                           HasSubstr("try a folder that all workers share"))));
    EXPECT_EQ(newest_number(folder), 1);
    EXPECT_EQ(num_files(folder), 1u + 6u);
    EXPECT_EQ(has_that_step ? num_files(other) : 1u, 1u);
  }
}

TEST(ShardedVersion, ErrorOfOneWorkerFailsAllWorkersAndKeepsPreviousVersion) {
  const std::string folder = empty_folder();
  EXPECT_THAT(save_together(2, folder, 1, 1), Each(""));
  Workers workers(2);
  const auto errors = errors_of_ranks(2, [&](int worker) {
    CheckpointFile file = values_of(worker, 2, 2, 2);
    if (worker == 1) file.parts["\xFF"] = file.parts["few"];  // not a valid file name
    internal::save_version(folder, file, {}, workers.self(worker));
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("worker 1: "), HasSubstr("not UTF-8"))));
  EXPECT_EQ(newest_number(folder), 1);
  EXPECT_EQ(num_files(folder), 1u + 5u);
}

TEST(ShardedVersion, WorkerLossDuringSaveKeepsPreviousVersion) {
  const std::string folder = empty_folder();
  EXPECT_THAT(save_together(3, folder, 1, 1), Each(""));
  for (int call = 1; call <= 5; ++call) {
    Workers workers(3);
    workers.lose(2, call);
    const auto errors = save_together(workers, {folder, folder, folder}, 1 + call, 2);
    // The commit is announced in the fourth exchange: if the worker is lost earlier, the old
    // version remains.
    EXPECT_EQ(newest_number(folder), call < 4 ? 1 : 1 + call);
    EXPECT_THAT(errors, Each(call < 5 ? "worker 2 exited" : ""));
    // If worker 2 is lost in the second exchange, another worker may still be writing to the folder
    // while worker 0 removes it.
    const bool may_be_left = call == 2;
    EXPECT_TRUE(may_be_left || std::filesystem::exists(folder + "/step_2") == (call >= 4));
  }
}

TEST(ShardedVersion, RemovesStaleMarkersOfDeadProcesses) {
  const std::string folder = empty_folder();
  const std::string mark = "is_shared_0123456789abcdef0123456789abcdef";
  write_file_atomically(concat(folder, "/", mark), "");
  write_file_atomically(folder + "/is_shared_notes", "mine");
  write_file_atomically(concat(folder, "/", mark.substr(0, 41), "0"), "mine");
  EXPECT_THAT(save_together(2, folder, 1, 1), Each(""));
  EXPECT_EQ(num_files(folder), 1u + 5u + 2u);
  EXPECT_FALSE(std::filesystem::exists(concat(folder, "/", mark)));
}

TEST(ShardedVersion, AllWorkersAgreeOnWhetherFolderIsShared) {
  const std::string folder = empty_folder(), other = folder + "_other";
  std::filesystem::remove_all(other);
  const LogLines log;
  for (const bool is_same : {true, false}) {
    Workers workers(3);
    EXPECT_THAT(errors_of_ranks(3,
                                [&](int worker) {
                                  const std::string& own = worker == 1 && !is_same ? other : folder;
                                  EXPECT_EQ(internal::is_shared(own, workers.self(worker)),
                                            is_same);
                                }),
                Each(""));
    EXPECT_EQ(num_files(folder), 0u);
  }
  ASSERT_EQ(log.list().size(), 1u);
  EXPECT_THAT(log.list()[0],
              AllOf(HasSubstr("workers 1 cannot see worker 0's '" + folder), HasSubstr("share")));
}

// Reading.

struct ReadBack {
  std::vector<std::string> errors;
  std::vector<std::optional<CheckpointFile>> files;
};

/// Reads a version on all workers; each worker reads its parts of the split tensors.
ReadBack read_together(const std::vector<std::string>& folders, const std::string& name,
                       bool must_be_shared) {
  const auto count = static_cast<int>(folders.size());
  Workers workers(count), texts(count);  // `texts` implements from_writer
  ReadBack back;
  back.files.resize(folders.size());
  back.errors = errors_of_ranks(count, [&](int worker) {
    const auto w = static_cast<std::size_t>(worker);
    internal::ShardedRead reading;
    reading.wanted = values_of(worker, count, 0, 0).parts;
    reading.own_path = [&](const std::string& found) { return folders[w] + "/" + found; };
    reading.must_be_shared = must_be_shared;
    const CheckpointOptions options{.writes = worker == 0,
                                    .from_writer = [&](const std::string& own) {
                                      return texts.self(worker).exchange(own).front();
                                    }};
    back.files[w] = internal::read_sharded(
        [&](const internal::ReadPath& read) {
          return std::optional(read(folders[0] + "/" + name));
        },
        reading, workers.self(worker), options);
  });
  return back;
}

TEST(ShardedVersion, RestoresOnAnyNumberOfWorkers) {
  const std::string folder = empty_folder();
  for (const int saved_by : {1, 3, 4}) {
    EXPECT_THAT(save_together(saved_by, folder, saved_by, 1), Each(""));
    for (const std::size_t count : {2u, 3u, 5u}) {
      const ReadBack back = read_together(std::vector<std::string>(count, folder), "step_1", true);
      EXPECT_THAT(back.errors, Each(""));
      std::int64_t next = 0;
      for (const auto& file : back.files) {
        const TensorPart& part = file.value().parts.at("cut");
        EXPECT_EQ(part.first, next);
        next += part.count();
        EXPECT_THAT(part.values.at(0).to_doubles(), Each(saved_by));
        EXPECT_THAT(file->tensors.at("whole").to_doubles(), Each(saved_by));
        EXPECT_EQ(file->states.at("number").as_int(), saved_by);
      }
      EXPECT_EQ(next, kElementsOfAll);
    }
  }
}

TEST(ShardedVersion, WorkerWithoutFolderAccessIsReportedOrReceivesValues) {
  const std::string folder = empty_folder();
  EXPECT_THAT(save_together(2, folder, 6, 1), Each(""));
  const std::vector<std::string> folders = {folder, folder, folder + "_none"};
  EXPECT_THAT(read_together(folders, "step_1", true).errors,
              Each(AllOf(HasSubstr("workers 2 cannot see worker 0's"), HasSubstr("share"))));
  const ReadBack back = read_together(folders, "step_1", false);
  EXPECT_THAT(back.errors, Each(""));
  for (const auto& file : back.files) EXPECT_EQ(number_in(file.value()), 6);
}

TEST(ShardedVersion, DamagedShardErrorNamesAffectedWorkers) {
  const std::string folder = empty_folder();
  EXPECT_THAT(save_together(4, folder, 6, 1), Each(""));
  const std::string file = folder + "/step_1/model-00004-of-00005.safetensors";  // file of worker 2
  std::string bytes = read_file(file);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file_atomically(file, bytes);
  const auto names_it = HasSubstr(file + ": the file is damaged");
  EXPECT_THAT(verify_checkpoint(folder + "/step_1"), ElementsAre(names_it));
  EXPECT_THAT(read_together({folder, folder}, "step_1", true).errors,
              Each(AllOf(names_it, HasSubstr("worker 1: "), Not(HasSubstr("worker 0: ")))));
}

TEST(ShardedVersion, AllWorkersReturnWhenWorker0FindsNothingOrFails) {
  for (const bool fails : {true, false}) {
    Workers workers(2);
    const auto errors = errors_of_ranks(2, [&](int worker) {
      const auto found = internal::read_sharded(
          [&](const internal::ReadPath&) -> std::optional<CheckpointFile> {
            if (fails) fail(ErrorCode::kUnavailable, "no such disk");
            return std::nullopt;
          },
          {}, workers.self(worker), {.writes = worker == 0});
      EXPECT_FALSE(found);
    });
    EXPECT_THAT(errors, Each(fails ? "no such disk" : ""));
  }
}

// Crashes.

constexpr int kNumSaves = 3;
constexpr std::int64_t kSteps[kNumSaves] = {1, 2, 2};

/// Saves kNumSaves times on two workers and writes a byte to descriptor `done` after each save.
void save_all(const std::string& folder, int done) {
  for (int i = 0; i < kNumSaves; ++i) {
    if (save_together(2, folder, i + 1, kSteps[i]) != std::vector<std::string>(2)) ::_exit(1);
    if (::write(done, "x", 1) != 1) std::abort();
  }
}

class ShardedVersionCrash : public TestWithParam<Action> {};

TEST_P(ShardedVersionCrash, KeepsPreviousOrNewVersion) {
  const std::string folder = fast_folder("in_parts_crash");
  Crash crash;
  for (int call = 1; !crash.finished; ++call) {
    SCOPED_TRACE(call);
    ASSERT_LT(call, 500);
    std::filesystem::remove_all(folder);
    crash = crash_at(call, GetParam(), folder, [&](int done) { save_all(folder, done); });
    const std::int64_t found = newest_number(folder).value_or(0);
    EXPECT_GE(found, crash.num_saved);
    EXPECT_LE(found, crash.num_saved + 1);
    EXPECT_THAT(save_together(2, folder, 99, 99), Each(""));  // the next run can save
    EXPECT_EQ(newest_number(folder), 99);
    for (const CheckpointVersion& version : list_checkpoints(folder)) {
      EXPECT_EQ(version.state, VersionState::kWhole) << version.problem;
      EXPECT_EQ(num_files(version.path), 5u) << version.path;
    }
    EXPECT_TRUE(!crash.finished || call > 60);
  }
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Checkpoint, ShardedVersionCrash, Values(Action::kKill, Action::kPowerCut),
                         [](const auto& info) {
                           return info.param == Action::kKill ? "Killed" : "PowerCut";
                         });

}  // namespace tutti::testing::version_test
