// Versions of several files, and manifests that lie.
// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/version.h"

#include <algorithm>

#include "core/file.h"
#include "core/hash.h"
#include "tests/checkpoint/checkpoint_test_util.h"

namespace tutti {
namespace version_test {

using checkpoint_test_util::empty_folder;
using checkpoint_test_util::expect_error;
using internal::CheckpointFile;
using internal::Folder;
using internal::Manifest;
using internal::ManifestTensor;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr std::int64_t kRows = 10;

/// Element i is i.
Tensor table(std::int64_t first_row, std::int64_t num_rows) {
  std::vector<float> values;
  for (std::int64_t i = 3 * first_row; i < 3 * (first_row + num_rows); ++i) {
    values.push_back(static_cast<float>(i));
  }
  return Tensor::from(Shape{num_rows, 3}, values);
}

/// The file of process `index` of `count`: its rows of a table; the first has also a scalar.
Manifest write_rows(const Folder& folder, int index, int count, std::int64_t chunk_bytes = 16) {
  const std::int64_t first = kRows * index / count, end = kRows * (index + 1) / count;
  CheckpointFile file;
  file.info.step = 5;
  file.states["s"] = Json(7);
  file.tensors["table"] = table(first, end - first);
  if (index == 0) file.tensors["scalar"] = Tensor(2.5f);
  Manifest about = internal::describe(file, 3);
  about.chunk_bytes = static_cast<std::uint64_t>(chunk_bytes);
  Manifest part = internal::write_part(folder, about, file, {index, count});
  for (ManifestTensor& tensor : part.tensors) {
    if (tensor.name != "table") continue;
    tensor.shape = Shape{kRows, 3};
    tensor.pieces[0].first = first;
  }
  return part;
}

/// The same of ranges of elements, [0, 7) and so on, in pieces of 5 elements at most.
Manifest write_elements(const Folder& folder, int index, int count) {
  const std::int64_t all = 3 * kRows;
  const std::int64_t first = all * index / count, end = all * (index + 1) / count;
  const Tensor flat = table(0, kRows).detached_reshape({all});
  CheckpointFile file;
  file.info.step = 5;
  TensorPart part{"table", Shape{kRows, 3}, DType::kFloat32, first};
  for (std::int64_t i = first; i < end; i += 5) {
    part.values.push_back(flat.detached_rows(i, std::min<std::int64_t>(5, end - i)));
  }
  file.parts["table"] = part;
  Manifest about = internal::describe(file, 3);
  about.chunk_bytes = 16;  // four elements: no piece, and no range, ends where a chunk does
  return internal::write_part(folder, about, file, {index, count});
}

TEST(Version, OfSeveralFilesIsOneToWhoeverReadsIt) {
  for (const int count : {1, 2, 3, 10, 11}) {
    const Folder folder = Folder::make(concat(empty_folder(), "/v", count));
    std::vector<Manifest> parts;
    for (int i = count; i-- > 0;) parts.push_back(write_rows(folder, i, count));  // in any order
    expect_error(ErrorCode::kNotFound, {"manifest.json", "never finished"},
                 [&] { internal::read_version(folder); });
    std::ranges::reverse(parts);
    internal::commit_version(folder, internal::join_parts(parts));
    const CheckpointFile file = internal::read_version(folder);
    EXPECT_EQ(file.info.step, 5);
    EXPECT_EQ(file.info.sequence, 3);
    EXPECT_EQ(file.states.at("s").as_int(), 7);
    EXPECT_EQ(file.tensors.at("scalar").item(), 2.5f);
    EXPECT_EQ(file.tensors.at("table").to_doubles(), table(0, kRows).to_doubles());
    EXPECT_THAT(internal::find_damage(folder, *internal::read_manifest(folder)), IsEmpty());
  }
}

TEST(Version, OfRangesOfElementsIsReadWholeAndInOtherRanges) {
  const std::vector<double> expected = table(0, kRows).to_doubles();
  for (const int count : {1, 2, 3, 4, 30, 31}) {
    SCOPED_TRACE(count);
    const Folder folder = Folder::make(concat(empty_folder(), "/v", count));
    std::vector<Manifest> parts;
    for (int i = 0; i < count; ++i) parts.push_back(write_elements(folder, i, count));
    internal::commit_version(folder, internal::join_parts(parts));
    EXPECT_EQ(internal::read_version(folder).tensors.at("table").to_doubles(), expected);
    const Manifest manifest = *internal::read_manifest(folder);
    EXPECT_THAT(internal::find_damage(folder, manifest), IsEmpty());
    const std::string text = internal::format_manifest(manifest);
    // What lies there in one piece every earlier program reads.
    EXPECT_NE(text.find(count == 1 ? "\"version\": 1" : "\"version\": 2"), std::string::npos);
    for (const auto& [first, end] : std::vector<std::pair<int, int>>{
             {0, 30}, {0, 1}, {29, 30}, {3, 3}, {4, 8}, {5, 21}, {8, 30}}) {
      TensorPart wanted{
          "table", Shape{kRows, 3}, DType::kFloat32, first, {Tensor::zeros({end - first})}};
      const CheckpointFile file = internal::read_version(folder, {{"table", wanted}});
      EXPECT_TRUE(file.tensors.empty());
      const TensorPart& part = file.parts.at("table");
      EXPECT_EQ(part.first, first);
      EXPECT_EQ(part.values.at(0).to_doubles(),
                std::vector<double>(expected.begin() + first, expected.begin() + end));
    }
    TensorPart other{"table", Shape{3, kRows}, DType::kFloat32, 0, {Tensor::zeros({4})}};
    EXPECT_TRUE(internal::read_version(folder, {{"table", other}}).tensors.contains("table"));
  }
}

TEST(Version, IsNotCommittedWhenElementsAreMissingTwiceOrOfAnotherTensor) {
  const Folder folder = Folder::make(empty_folder());
  const Manifest first = write_elements(folder, 0, 3), second = write_elements(folder, 1, 3);
  expect_error(ErrorCode::kDataLoss, {"'table'", "expected 30 elements, got 20"}, [&] {
    commit_version(folder, internal::join_parts({first, second}));
  });
  expect_error(ErrorCode::kDataLoss, {"'table'", "elements are missing"},
               [&] { commit_version(folder, internal::join_parts({second})); });
  expect_error(ErrorCode::kDataLoss, {"'table'", "elements occur twice"}, [&] {
    commit_version(folder, internal::join_parts({first, first}));
  });
  expect_error(ErrorCode::kDataLoss, {"'table'", "pieces of elements, got one of rows"}, [&] {
    commit_version(folder, internal::join_parts({first, write_rows(folder, 1, 3)}));
  });
  Manifest other = second;
  other.tensors[0].shape = Shape{30};
  expect_error(ErrorCode::kInvalidArgument, {"'table'", "part_0_of_3", "part_1_of_3", "[30]"}, [&] {
    internal::join_parts({first, other});
  });
  EXPECT_FALSE(internal::read_manifest(folder));
}

TEST(Version, IsNotCommittedWhenRowsAreMissingOrTwice) {
  const Folder folder = Folder::make(empty_folder());
  const Manifest first = write_rows(folder, 0, 3), second = write_rows(folder, 1, 3);
  Manifest half = second;  // rows 5 to 7: row 5 is in the second, too
  for (ManifestTensor& tensor : half.tensors) tensor.pieces[0].first = 5;
  expect_error(ErrorCode::kDataLoss, {"'table'", "expected 10 rows, got 6"}, [&] {
    commit_version(folder, internal::join_parts({first, second}));
  });
  expect_error(ErrorCode::kDataLoss, {"'table'", "occur twice"}, [&] {
    commit_version(folder, internal::join_parts({first, second, half}));
  });
  EXPECT_FALSE(internal::read_manifest(folder));
}

TEST(Version, HoldsEmptyTensorsAndEveryType) {
  const Folder folder = Folder::make(empty_folder());
  CheckpointFile file;
  file.tensors = {{"none", Tensor::zeros({0, 4})},
                  {"flags", Tensor::full({3}, 1, DType::kBool)},
                  {"half", Tensor::full({2, 2}, 1.5, DType::kFloat16)},
                  {"count", Tensor::from<std::int64_t>({}, {-9007199254740993})},
                  {"q\"uo\\te \xC3\xBC/..", Tensor::ones({1})}};
  internal::commit_version(folder, internal::write_part(folder, internal::describe(file, 1), file));
  const CheckpointFile read = internal::read_version(folder);
  ASSERT_EQ(read.tensors.size(), file.tensors.size());
  for (const auto& [name, tensor] : file.tensors) {
    EXPECT_EQ(read.tensors.at(name).to_string(), tensor.to_string());
    EXPECT_EQ(read.tensors.at(name).shape(), tensor.shape());
  }
}

TEST(PartName, IsReadBackAndOthersAreNot) {
  EXPECT_EQ(internal::sequence_of_part(internal::part_name(31)), 31);
  EXPECT_EQ(internal::part_name(31, {2, 7}), "part_2_of_7.save_31.safetensors");
  EXPECT_EQ(internal::sequence_of_part("part_2_of_7.save_31.safetensors"), 31);
  for (const char* name : {"part_0_of_1.save_0.safetensors", "part_0_of_1.save_1.safetensors.tmp",
                           "part_x_of_1.save_1.safetensors", "part_0_of_1.safetensors",
                           "part_0_of_1.save_-1.safetensors", "manifest.json", ""}) {
    EXPECT_FALSE(internal::sequence_of_part(name)) << name;
  }
}

std::string sealed(const std::string& body) {
  Hasher hasher;
  hasher.update(body);
  return concat(body, internal::kManifestTail, hasher.hex_digest(), internal::kManifestEnd);
}

/// What to replace in a good manifest, and what the error says.
struct Lie {
  std::string from, to;
  std::vector<std::string> parts;
};

// The checksum is right: whoever wrote this meant it.
TEST(Manifest, ThatLiesIsRefused) {
  const std::string folder = empty_folder();
  const Manifest manifest = write_rows(Folder::open(folder), 0, 1, 64);
  const std::string text = internal::format_manifest(manifest);
  const std::string body = text.substr(0, text.rfind(internal::kManifestTail));
  const std::string name = "part_0_of_1.save_3.safetensors";
  const std::vector<Lie> lies = {
      {name, "../../etc/passwd", {"file name", "../../etc/passwd"}},
      {name, "/etc/passwd", {"file name", "/etc/passwd"}},
      {name, "..", {"file name"}},
      {name, "", {"file name"}},
      {name, ".hidden", {"file name"}},
      {name, "a\\u0000b", {"file name"}},
      {name, "manifest.json", {"file name"}},
      {"\"tutti checkpoint\"", "\"zip\"", {"'zip'"}},
      {"\"step\": 5", "\"step\": -5", {"'step'", "-5"}},
      {"\"step\": 5", "\"step\": 5.5", {"number"}},
      {"\"step\": 5", "\"stop\": 5", {"step"}},
      {"\"sequence\": 3", "\"sequence\": 99999999999999999999", {"manifest"}},
      {"\"chunk_bytes\": 64", "\"chunk_bytes\": 0", {"chunks"}},
      {"\"chunk_bytes\": 64", "\"chunk_bytes\": 32", {"chunks"}},
      {"\"F32\"", "\"F31\"", {"'F31'"}},
      {"\"F32\"", "\"F64\"", {"bytes by its tensors"}},
      {"   \"shape\": [\n    10,", "   \"shape\": [\n    -10,", {"-10"}},
      {"   \"shape\": [\n    10,", "   \"shape\": [\n    4611686018427387904,", {"more elements"}},
      {"\"rows\": [\n      0,\n      10", "\"rows\": [\n      0,\n      11", {"rows", "11"}},
      {"\"rows\": [\n      0,\n      10", "\"rows\": [\n      3,\n      2", {"rows"}},
      {"\"rows\": [\n      0,\n      10", "\"rows\": [\n      0", {"2 rows"}},
      {"\"rows\": [\n      0,\n      10",
       "\"elements\": [\n      0,\n      30",
       {"version 2", "got 1"}},
      {"\"rows\": [\n      0,\n      10", "\"elements\": [\n      0,\n      31", {"[0, 30]", "31"}},
      {"\"version\": 1", "\"version\": 2", {"version 1", "got 2"}},
      {"\"file\": 0", "\"file\": 1", {"file 0 to 1"}},
      {"\"name\": \"scalar\"", "\"name\": \"table\"", {"'table'", "twice"}},
      {"\"head_bytes\": ", "\"head_bytes\": 9", {"head"}},
      {"\"bytes\": ", "\"bytes\": 9", {"bytes by its tensors"}},
      {"\"checksum\": \"", "\"checksum\": \"g", {"hexadecimal"}},
      {"\"states\": {", "\"states\": [", {"manifest"}},
  };
  EXPECT_EQ(internal::parse_manifest(sealed(body), "m"), manifest);
  for (const Lie& lie : lies) {
    SCOPED_TRACE(lie.to);
    std::string lying = body;
    const std::size_t at = lying.find(lie.from);
    ASSERT_NE(at, std::string::npos) << lie.from << " in\n" << body;
    lying.replace(at, lie.from.size(), lie.to);
    std::vector<std::string> parts = lie.parts;
    parts.push_back("some/manifest.json: ");
    expect_error(ErrorCode::kDataLoss, parts,
                 [&] { internal::parse_manifest(sealed(lying), "some/manifest.json"); });
  }
}

}  // namespace version_test
}  // namespace tutti
