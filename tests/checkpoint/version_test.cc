// Versions of several files, and indexes that lie.
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/version.h"

#include <algorithm>

#include "core/file.h"
#include "tests/checkpoint/checkpoint_test_util.h"
#include "tutti/checkpoint/checkpoint_versions.h"

namespace tutti {
namespace version_test {

using checkpoint_test_util::empty_folder;
using checkpoint_test_util::expect_error;
using internal::CheckpointFile;
using internal::Folder;
using internal::VersionIndex;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::int64_t kElements = 30;
const Shape kShape{10, 3};

/// A part of a table whose element i is i, in values of 5 elements at most.
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

/// Process `index` of `count` writes its part of the table, the first one also a scalar.
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

TEST(Version, OfSeveralFilesIsReadWholeAndInOtherRanges) {
  std::vector<double> expected;
  for (int i = 0; i < kElements; ++i) expected.push_back(i);
  for (const int count : {1, 2, 3, 4, 11, 30, 31}) {
    SCOPED_TRACE(count);
    const Folder folder = Folder::make(concat(empty_folder(), "/v", count));
    std::vector<VersionIndex> files;
    for (int i = count; i-- > 0;) files.push_back(write_file(folder, i, count));  // in any order
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

/// Other programs find every tensor that is not cut by Hugging Face's names.
TEST(Version, HasTheIndexOfHuggingFace) {
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

TEST(Version, IsNotCommittedWhenElementsAreMissingTwiceOrOfAnotherTensor) {
  const Folder folder = Folder::make(empty_folder());
  const VersionIndex first = write_file(folder, 0, 3), second = write_file(folder, 1, 3);
  EXPECT_ERROR(commit(folder, {first, second}), kDataLoss, "'table'",
               "[0, 30) once each, got [0, 10), [10, 20)");
  EXPECT_ERROR(commit(folder, {second}), kDataLoss, "'table'", "once each, got [10, 20)");
  VersionIndex copy;  // the same elements in another file
  copy.parts["table"] = {DType::kFloat32, kShape, {{"copy.safetensors", {0, 10}}}};
  EXPECT_ERROR(commit(folder, {first, copy, second, write_file(folder, 2, 3)}), kDataLoss,
               "'table'", "once each");
  VersionIndex whole;
  whole.weight_map["table"] = "copy.safetensors";
  EXPECT_ERROR(commit(folder, {first, whole, second, write_file(folder, 2, 3)}), kDataLoss,
               "'table'", "all in one file");
  EXPECT_ERROR(joined({whole, whole}), kInvalidArgument, "'table'", "copy.safetensors", "once");
  VersionIndex other = second;
  other.parts["table"].shape = Shape{30};
  EXPECT_ERROR(joined({first, other}), kInvalidArgument, "'table'", "00001-of-00003",
               "00002-of-00003", "[30]");
  EXPECT_FALSE(internal::read_index(folder));
}

TEST(Version, HoldsEmptyTensorsAndEveryType) {
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

/// A replacement in a good index, and parts of the error.
struct Lie {
  std::string from, to;
  std::vector<std::string> parts;
};

// The checksum is right: the author meant it.
TEST(VersionIndex, ThatLiesIsRefused) {
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
      {"\"state\":\"state.json\"", "\"state\":\"none.json\"", {"state file", "none.json"}},
      {"[15,30]", "[15,15],\"state.json\":[15,30]", {"tensor files", "state.json"}},
      {"\"tutti checkpoint\"", "\"zip\"", {"'zip'"}},
      {"\"step\":5", "\"step\":-5", {"'step'", "-5"}},
      {"\"step\":5", "\"step\":5.5", {"number"}},
      {"\"step\":5", "\"stop\":5", {"step"}},
      {"\"sequence\":3", "\"sequence\":99999999999999999999", {}},
      {"\"sequence\":3", "\"sequence\":0", {"sequence from 1", "got 0"}},
      {"\"sequence\":3", "\"sequence\":4611686018427387905", {"got 4611686018427387905"}},
      {"\"bytes\":", "\"bytes\":-", {"'bytes'", "-"}},
      {"\"xxh3\":", "\"xxh4\":", {"xxh3"}},
      {"\"F32\"", "\"F31\"", {"'F31'"}},
      {"[10,3]", "[-10,3]", {"-10"}},
      {"[10,3]", "[4611686018427387904,3]", {"more elements"}},
      {"[10,3]", "[1,1,1,1,1,1,1,1,1,1,1,1]", {"dimensions"}},
      {"[10,3]", "[10,4]", {"'table'", "[0, 40) once each"}},
      {"[15,30]", "[15,31]", {"[0, 30]", "31"}},
      {"[15,30]", "[15,14]", {"[15, 14]"}},
      {"[15,30]", "[-1,30]", {"[-1, 30]"}},
      {"[15,30]", "[15]", {"2 ends"}},
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

// Right checksums, but the header of a file is not what the index lists: nothing is allocated.
TEST(VersionIndex, ThatDoesNotFitItsFilesIsRefused) {
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

TEST(Version, IsNotCommittedWithSequenceThatReadersRefuse) {
  const Folder folder = Folder::make(empty_folder());
  VersionIndex index = joined({write_file(folder, 0, 1)});
  index.sequence = internal::kMaxSequence + 1;
  EXPECT_ERROR(internal::commit_version(folder, index, {}), kFailedPrecondition, folder.path(),
               "4611686018427387905");
  EXPECT_FALSE(internal::read_index(folder));
}

// A worker whose parts are all empty writes such a file.
TEST(Version, FileWithoutTensorsIsCompared) {
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

TEST(Version, BadElementOfBoolIsNamedByItsOffsetInTheFile) {
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

TEST(Folder, SizeThatTheSystemDoesNotTellIsAnError) {
  const Folder folder = Folder::make(empty_folder());
  EXPECT_EQ(folder.size_of("none"), std::nullopt);
  const std::string name(300, 'a');
  EXPECT_ERROR(folder.size_of(name), kUnavailable, name, "too long");
}

TEST(Version, OfTheEarlierFormatIsRefusedByName) {
  const std::string folder = empty_folder();
  write_file_atomically(folder + "/manifest.json", "{}");
  for (const auto& read : std::vector<std::function<void()>>{
           [&] { internal::read_version(Folder::open(folder)); },
           [&] { verify_checkpoint(folder); }, [&] { describe_checkpoint(folder); }}) {
    expect_error(ErrorCode::kUnimplemented,
                 {folder, "manifest.json", "try Checkpoint::restore()", "commit 90f32457"}, read);
  }
}

}  // namespace version_test
}  // namespace tutti
