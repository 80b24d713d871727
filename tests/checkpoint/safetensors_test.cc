// Tests safetensors files and load_weights(), which also reads files written by other programs.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/checkpoint/safetensors.h"

#include <array>
#include <cstdio>

#include "core/file.h"
#include "tests/checkpoint/saved_series.h"
#include "tests/support/warnings.h"
#include "tutti/autograd/variable.h"
#include "tutti/checkpoint/checkpoint.h"
#include "tutti/tensor/ops/elementwise.h"

namespace tutti::testing::safetensors_test {

/// Returns a file with every dtype except the 16-bit types, a scalar, an empty tensor and a name
/// with quotes and umlauts.
SafetensorsFile full_file() {
  SafetensorsFile file;
  file.tensors = {
      {"flags", Tensor::full({3}, 1, DType::kBool)},
      {"bytes", Tensor::from<std::uint8_t>({2}, {7, 255})},
      {"a/kernel", Tensor::from<float>({2, 2}, {1.5f, -0.0f, 3e-45f, 4})},
      {"doubles", Tensor::from<double>({1}, {0.1})},
      {"ints", Tensor::from<std::int32_t>({2}, {-1, 2147483647})},
      {"step", Tensor::from<std::int64_t>({}, {-9007199254740993})},
      {"none", Tensor::zeros({0, 4})},
      {"q\"uo\\te \xC3\xBC", Tensor::ones({1})},
  };
  file.metadata = {{"step", "12"}, {"note", "line\nline \xE2\x82\xAC"}};
  return file;
}

std::string text_of(const Tensor& tensor) {
  return concat(
      tensor.dtype(), tensor.shape(), ": ",
      PrintToString(std::vector<int>(
          reinterpret_cast<const unsigned char*>(tensor.bytes().data()),
          reinterpret_cast<const unsigned char*>(tensor.bytes().data()) + tensor.num_bytes())));
}

TEST(Safetensors, RoundTripsTensorsNamesAndMetadata) {
  const SafetensorsFile written = full_file();
  const std::string path = empty_folder() + "/sub/all.safetensors";
  write_file_atomically(path, format_safetensors(written));
  const SafetensorsFile read = parse_safetensors(read_file(path), path);
  EXPECT_EQ(read.metadata, written.metadata);
  ASSERT_EQ(read.tensors.size(), written.tensors.size());
  for (const NamedTensor& tensor : written.tensors) {
    const auto found = std::find_if(read.tensors.begin(), read.tensors.end(),
                                    [&](const auto& other) { return other.name == tensor.name; });
    ASSERT_NE(found, read.tensors.end()) << tensor.name;
    EXPECT_EQ(text_of(found->value), text_of(tensor.value)) << tensor.name;
  }
}

// The expected header was written by the Python package safetensors 0.8.0 (save_file with metadata
// {"k": "v"}).
TEST(Safetensors, WritesSameHeaderAsReferenceLibrary) {
  SafetensorsFile file;
  file.tensors = {{"a", Tensor::full({3}, 1, DType::kBool)},
                  {"b/kernel", Tensor::zeros({2, 3})},
                  {"d", Tensor::scalar(3.5, DType::kFloat64)},
                  {"i", Tensor::zeros({3}, DType::kInt64)},
                  {"j", Tensor::zeros({3}, DType::kInt32)},
                  {"u", Tensor::zeros({5}, DType::kUInt8)},
                  {"z", Tensor::zeros({0, 3})}};
  file.metadata = {{"k", "v"}};
  const std::string header =
      R"({"__metadata__":{"k":"v"},"i":{"dtype":"I64","shape":[3],"data_offsets":[0,24]},)"
      R"("d":{"dtype":"F64","shape":[],"data_offsets":[24,32]},)"
      R"("b/kernel":{"dtype":"F32","shape":[2,3],"data_offsets":[32,56]},)"
      R"("z":{"dtype":"F32","shape":[0,3],"data_offsets":[56,56]},)"
      R"("j":{"dtype":"I32","shape":[3],"data_offsets":[56,68]},)"
      R"("u":{"dtype":"U8","shape":[5],"data_offsets":[68,73]},)"
      R"("a":{"dtype":"BOOL","shape":[3],"data_offsets":[73,76]}}    )";
  const std::string bytes = format_safetensors(file);
  EXPECT_EQ(bytes.size(), 508u);
  EXPECT_EQ(bytes.substr(0, 8), std::string("\xa8\x01\0\0\0\0\0\0", 8));
  EXPECT_EQ(bytes.substr(8, 0x1a8), header);
}

TEST(Safetensors, RoundTripsFloat16AndBFloat16) {
  SafetensorsFile file;
  file.tensors = {{"half", Tensor::full({2}, 1.5, DType::kFloat16)},
                  {"brain", Tensor::full({1, 3}, -0.25, DType::kBFloat16)}};
  const std::string bytes = format_safetensors(file);
  EXPECT_NE(bytes.find(R"("brain":{"dtype":"BF16","shape":[1,3],"data_offsets":[0,6]},)"
                       R"("half":{"dtype":"F16","shape":[2],"data_offsets":[6,10]})"),
            std::string::npos)
      << bytes.substr(8);
  EXPECT_EQ(bytes.substr(bytes.size() - 10),
            std::string("\x80\xbe\x80\xbe\x80\xbe\0\x3e\0\x3e", 10));
  const SafetensorsFile read = parse_safetensors(bytes, "memory");
  ASSERT_EQ(read.tensors.size(), 2u);
  EXPECT_EQ(read.tensors[0].value.dtype(), DType::kBFloat16);
  EXPECT_EQ(read.tensors[1].value.to_doubles(), (std::vector<double>{1.5, 1.5}));
}

TEST(Safetensors, AlignsTensorsAndWritesEmptyFile) {
  const std::string bytes = format_safetensors(full_file());
  const SafetensorsFile file = parse_safetensors(bytes, "memory");
  std::size_t offset = bytes.size();
  for (const NamedTensor& tensor : file.tensors) offset -= tensor.value.num_bytes();
  EXPECT_EQ(offset % 8, 0u);
  for (const NamedTensor& tensor : file.tensors) {
    EXPECT_EQ(offset % size_of(tensor.value.dtype()), 0u) << tensor.name;
    offset += tensor.value.num_bytes();
  }
  EXPECT_EQ(format_safetensors({}), std::string("\x08\0\0\0\0\0\0\0{}      ", 16));
  EXPECT_TRUE(parse_safetensors(format_safetensors({}), "memory").tensors.empty());
}

TEST(Safetensors, RefusesInvalidNames) {
  const Tensor x(1.0f);
  auto names = [&](std::vector<std::string> list) {
    SafetensorsFile file;
    for (const std::string& name : list) file.tensors.push_back({name, x});
    return file;
  };
  EXPECT_INVALID(format_safetensors(names({"a", "b", "a"})), "'a'", "occurs twice");
  EXPECT_INVALID(format_safetensors(names({""})), "is empty");
  EXPECT_INVALID(format_safetensors(names({"__metadata__"})), "__metadata__", "reserved");
  EXPECT_INVALID(format_safetensors(names({"a\xFF"})), "not UTF-8");
  EXPECT_INVALID(format_safetensors({{{"a", Tensor()}}, {}}), "'a'", "undefined");
  EXPECT_INVALID(format_safetensors({{}, {{"k", "1"}, {"k", "2"}}}), "metadata key 'k'",
                 "occurs twice");
  EXPECT_INVALID(format_safetensors({{}, {{"k", "\xC0"}}}), "'k'", "not UTF-8");
}

/// Runs a Python program that is independent of tutti and returns its output; "" if Python is
/// missing.
std::string run_python(const std::string& program, const std::string& path) {
  const std::string script = path + ".py";
  write_file_atomically(script, program);
  const std::string command = "python3 '" + script + "' '" + path + "' 2>&1";
  FILE* pipe = ::popen(command.c_str(), "r");
  if (!pipe) return "";
  std::string output;
  std::array<char, 256> buffer;
  while (std::fgets(buffer.data(), buffer.size(), pipe)) output += buffer.data();
  ::pclose(pipe);
  return output;
}

bool has_python() { return run_python("print('yes')", empty_folder() + "/try") == "yes\n"; }

// Reads with an independent reader that uses only Python's struct and json modules.
TEST(Safetensors, IsReadableByIndependentReader) {
  if (!has_python()) GTEST_SKIP() << "there is no python3";
  const std::string path = empty_folder() + "/out.safetensors";
  write_file_atomically(path, format_safetensors(full_file()));
  const std::string output = run_python(R"PY(
import json, struct, sys
data = open(sys.argv[1], 'rb').read()
size, = struct.unpack('<Q', data[:8])
header = json.loads(data[8:8 + size].decode('utf-8'))
letters = {'F32': 'f', 'F64': 'd', 'I32': 'i', 'I64': 'q', 'U8': 'B', 'BOOL': '?'}
metadata = header.pop('__metadata__')
print(ascii(metadata['step']), ascii(metadata['note']))
for name in sorted(header):
    entry = header[name]
    begin, end = entry['data_offsets']
    elements = data[8 + size + begin:8 + size + end]
    letter = letters[entry['dtype']]
    count = len(elements) // struct.calcsize(letter)
    print(ascii(name), entry['shape'], *struct.unpack('<%d%s' % (count, letter), elements))
)PY",
                                        path);
  EXPECT_EQ(output, R"('12' 'line\nline \u20ac'
'a/kernel' [2, 2] 1.5 -0.0 2.802596928649634e-45 4.0
'bytes' [2] 7 255
'doubles' [1] 0.1
'flags' [3] True True True
'ints' [2] -1 2147483647
'none' [0, 4]
'q"uo\\te \xfc' [1] 1.0
'step' [] -9007199254740993
)");
}

// Reads files from an independent writer that orders and spaces the header differently.
TEST(Safetensors, ReadsFilesFromIndependentWriter) {
  if (!has_python()) GTEST_SKIP() << "there is no python3";
  const std::string path = empty_folder() + "/in.safetensors";
  const std::string output = run_python(R"PY(
import json, struct, sys
header = {'late': {'shape': [2], 'data_offsets': [4, 20], 'dtype': 'F64'},
          'early': {'data_offsets': [0, 4], 'dtype': 'I32', 'shape': []},
          '__metadata__': {'format': 'pt'}}
text = json.dumps(header, indent=3).encode()
with open(sys.argv[1], 'wb') as out:
    out.write(struct.pack('<Q', len(text)) + text + struct.pack('<idd', -5, 0.25, 1e300))
print('written')
)PY",
                                        path);
  ASSERT_EQ(output, "written\n");
  const SafetensorsFile file = parse_safetensors(read_file(path), path);
  ASSERT_EQ(file.tensors.size(), 2u);
  EXPECT_EQ(file.tensors[0].name, "early");
  EXPECT_EQ(file.tensors[0].value.item_int(), -5);
  EXPECT_EQ(file.tensors[1].name, "late");
  EXPECT_THAT(file.tensors[1].value.to_doubles(), ElementsAre(0.25, 1e300));
  EXPECT_THAT(file.metadata, ElementsAre(Pair("format", "pt")));
}

TEST(Safetensors, RoundTripsThroughFile) {
  const std::string path = empty_folder() + "/a/weights.safetensors";
  const SafetensorsFile file{.tensors = {{"w", Tensor::from<float>({2}, {1, 2})}},
                             .metadata = {{"format", "pt"}}};
  write_safetensors(path, file);
  EXPECT_EQ(read_file(path), format_safetensors(file));
  EXPECT_THAT(read_safetensors(path).tensors.at(0).value.to_doubles(), ElementsAre(1.0, 2.0));
  write_file_atomically(path, "short");
  EXPECT_ERROR((void)read_safetensors(path), kDataLoss, path);
  EXPECT_ERROR((void)read_safetensors(path + "x"), kNotFound, path + "x");
}

std::string length_bytes(std::uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(length >> (8 * i)));
  return bytes;
}

std::string file_with(const std::string& header, std::size_t num_bytes) {
  return length_bytes(header.size()) + header + std::string(num_bytes, '\0');
}

/// Returns a header with a single tensor 'w', described by these JSON members.
std::string tensor_header(const std::string& members) { return R"({"w":{)" + members + "}}"; }

struct Damage {
  const char* name;
  std::string bytes;
  std::vector<std::string> parts;
  ErrorCode code = ErrorCode::kDataLoss;
};

std::vector<Damage> damages() {
  const std::string good = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  const std::string a = R"("a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]})";
  return {
      {"Empty", "", {"offset 0", "at least 8 bytes, got 0"}},
      {"HalfLength", "\x08\0\0", {"offset 1", "got 1"}},
      {"HugeLength", std::string(8, '\xFF'), {"offset 0", "too long", "18446744073709551615"}},
      {"LongLength", length_bytes(100'000'001) + "{}", {"offset 0", "too long", "100000001"}},
      {"HalfHeader", length_bytes(50) + "{}", {"offset 10", "expected 50 bytes of header, got 2"}},
      {"EmptyHeader", length_bytes(0), {"offset 8"}},
      {"NoJson", file_with("{\"w\":", 0), {"offset 8", "JSON"}},
      {"NoObject", file_with("[1]", 0), {"offset 8", "JSON object"}},
      {"SpaceFirst", file_with(" {}", 0), {"offset 8", "JSON object"}},
      {"TwiceTheSameName", file_with("{" + a + "," + a + "}", 4), {"offset 8", "'a'", "twice"}},
      {"NoTensorObject", file_with(R"({"w":3})", 0), {"tensor 'w'"}},
      {"NoDType",
       file_with(tensor_header(R"("shape":[2],"data_offsets":[0,8])"), 8),
       {"tensor 'w'", "dtype"}},
      {"NoShape",
       file_with(tensor_header(R"("dtype":"F32","data_offsets":[0,8])"), 8),
       {"tensor 'w'", "shape"}},
      {"NoOffsets",
       file_with(tensor_header(R"("dtype":"F32","shape":[2])"), 8),
       {"tensor 'w'", "data_offsets"}},
      {"OneMemberTooMany", file_with(tensor_header(good + R"(,"x":1)"), 8), {"tensor 'w'", "'x'"}},
      {"UnknownDType",
       file_with(tensor_header(R"("dtype":"F33","shape":[2],"data_offsets":[0,8])"), 8),
       {"tensor 'w'", "F33"}},
      {"QuarterPrecision",
       file_with(tensor_header(R"("dtype":"F8_E5M2","shape":[4],"data_offsets":[0,4])"), 4),
       {"tensor 'w'", "F8_E5M2; expected F16, BF16, F32", "convert the file"},
       ErrorCode::kUnimplemented},
      {"TooManyDimensions",
       file_with(tensor_header(R"("dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1])"),
                 1),
       {"tensor 'w'", "9 dimensions"},
       ErrorCode::kUnimplemented},
      {"NegativeDimension",
       file_with(tensor_header(R"("dtype":"F32","shape":[-2],"data_offsets":[0,8])"), 8),
       {"tensor 'w'", "-2"}},
      {"FractionalDimension",
       file_with(tensor_header(R"("dtype":"F32","shape":[2.5],"data_offsets":[0,8])"), 8),
       {"tensor 'w'"}},
      {"HugeDimensions",
       file_with(
           tensor_header(R"("dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0])"),
           0),
       {"tensor 'w'", "no more elements than an int64 can count"}},
      {"ThreeOffsets",
       file_with(tensor_header(R"("dtype":"F32","shape":[2],"data_offsets":[0,8,9])"), 8),
       {"tensor 'w'", "2 data_offsets, got 3"}},
      {"BackwardOffsets",
       file_with(tensor_header(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])"), 8),
       {"tensor 'w'", "[8, 0]"}},
      {"NegativeOffset",
       file_with(tensor_header(R"("dtype":"F32","shape":[2],"data_offsets":[-8,0])"), 8),
       {"tensor 'w'", "-8"}},
      {"SpanOfAnotherShape",
       file_with(tensor_header(R"("dtype":"F32","shape":[3],"data_offsets":[0,8])"), 8),
       {"tensor 'w'", "12 bytes", "[3] of float32", "[0, 8]"}},
      {"Truncated",
       file_with(tensor_header(good), 7),
       {"tensor 'w'", "ends within", "offset 70, got 69"}},
      {"OutOfBounds",
       file_with(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[900,901]}})", 4),
       {"tensor 'b'", "ends within"}},
      {"Overlong",
       file_with(tensor_header(good), 9),
       {"offset 70", "continues after", "expected 70 bytes, got 71"}},
      {"Overlap",
       file_with("{" + a + R"(,"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})", 6),
       {"tensor 'b'", "overlaps"}},
      {"Hole",
       file_with("{" + a + R"(,"b":{"dtype":"U8","shape":[1],"data_offsets":[5,6]}})", 6),
       {"tensor 'b'", "gap"}},
      {"HoleAtTheStart",
       file_with(R"({"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2),
       {"tensor 'b'", "gap"}},
      {"NoBool",
       length_bytes(55) + R"({"f":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})" + "\x01\x02",
       {"tensor 'f'", "0 or 1, got 2", "offset 64"}},
      {"MetadataNoObject", file_with(R"({"__metadata__":[]})", 0), {"metadata"}},
      {"MetadataNoText", file_with(R"({"__metadata__":{"step":3}})", 0), {"metadata"}},
  };
}

class DamagedSafetensors : public TestWithParam<Damage> {};

TEST_P(DamagedSafetensors, ErrorNamesPathAndReason) {
  const std::string path = empty_folder() + "/damaged.safetensors";
  write_file_atomically(path, GetParam().bytes);
  std::vector<std::string> parts = GetParam().parts;
  parts.push_back(path);
  parts.push_back("expected");
  expect_error(GetParam().code, parts, [&] { parse_safetensors(read_file(path), path); });
}

INSTANTIATE_TEST_SUITE_P(Table, DamagedSafetensors, ValuesIn(damages()),
                         [](const auto& info) { return std::string(info.param.name); });

SafetensorsFile small_file() {
  return {{{"w", Tensor::from<float>({2}, {1, 2})}, {"f", Tensor::full({1}, 1, DType::kBool)}},
          {{"k", "v"}}};
}

TEST(Safetensors, RefusesEveryTruncation) {
  const std::string bytes = format_safetensors(small_file());
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_ERROR(parse_safetensors(std::string_view(bytes).substr(0, length), "memory"), kDataLoss,
                 "memory");
  }
}

// A flipped bit never makes the reader crash; builds with sanitizers check memory accesses.
TEST(Safetensors, DoesNotCrashOnFlippedBits) {
  const std::string good = format_safetensors(small_file());
  int refused = 0;
  for (std::size_t i = 0; i < good.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string bytes = good;
      bytes[i] = static_cast<char>(bytes[i] ^ (1 << bit));
      try {
        parse_safetensors(bytes, "memory");
      } catch (const Error&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 500);
}

Variable zeros(const std::string& name, const Shape& shape, DType dtype = DType::kFloat32) {
  return Variable(Tensor::zeros(shape, dtype), {.name = name});
}

/// Writes a file as another program would.
void write(const std::string& path, const std::vector<NamedTensor>& tensors) {
  write_safetensors(path, {tensors, {{"format", "pt"}}});
}

Tensor numbers(std::vector<float> values, DType dtype = DType::kFloat32) {
  const auto count = static_cast<std::int64_t>(values.size());
  return cast(Tensor::from<float>({count}, values), dtype);
}

TEST(LoadWeights, CastsFloatingPointTensorsToVariableTypes) {
  const std::string path = empty_folder() + "/w.safetensors";
  // 1.5 and -2 are exact in 16 bits; bfloat16 rounds 1 + 2^-10 to 1.
  write(path, {{"a", numbers({1.5F, -2.0F}, DType::kBFloat16)},
               {"b", numbers({1.5F}, DType::kFloat16)},
               {"c", numbers({1.0009765625F})}});
  Variable a = zeros("a", {2}), b = zeros("b", {1}, DType::kFloat64),
           c = zeros("c", {1}, DType::kBFloat16);
  const std::vector<std::string> lines = warnings_of([&] { load_weights(path, {a, b, c}); });
  EXPECT_THAT(a.value().to_doubles(), ElementsAre(1.5, -2.0));
  EXPECT_EQ(a.value().dtype(), DType::kFloat32);
  EXPECT_THAT(b.value().to_doubles(), ElementsAre(1.5));
  EXPECT_THAT(c.value().to_doubles(), ElementsAre(1.0));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], HasSubstr("3 tensors of " + path + " are cast"));
  EXPECT_THAT(lines[0], HasSubstr("'a' from bfloat16 to float32; values are rounded"));
  // An exact cast does not cause a warning.
  EXPECT_THAT(warnings_of([&] { load_weights(path, {a}, {.ignore_unknown = true}); }),
              ElementsAre());
}

TEST(LoadWeights, RefusesIntegersForFloatingPointVariables) {
  const std::string path = empty_folder() + "/w.safetensors";
  write(path, {{"a", numbers({1.0F}, DType::kInt32)}});
  EXPECT_INVALID(load_weights(path, {zeros("a", {1})}), "'a': expected float32 [1], got int32 [1]");
}

/// Writes a two-file model in Hugging Face's format.
std::string write_sharded_model() {
  const std::string folder = empty_folder();
  write(folder + "/model-00001-of-00002.safetensors",
        {{"a", numbers({1.0F}, DType::kBFloat16)}, {"b", numbers({2.0F, 3.0F})}});
  write(folder + "/model-00002-of-00002.safetensors", {{"c", numbers({4.0F})}});
  write_file_atomically(folder + "/model.safetensors.index.json",
                        R"({"metadata": {"total_size": 14}, "weight_map": {
                            "a": "model-00001-of-00002.safetensors",
                            "b": "model-00001-of-00002.safetensors",
                            "c": "model-00002-of-00002.safetensors"}})");
  return folder;
}

TEST(LoadWeights, ReadsFilesListedInIndex) {
  const std::string folder = write_sharded_model();
  for (const std::string& path : {folder, folder + "/model.safetensors.index.json"}) {
    Variable a = zeros("x/a", {1}), b = zeros("b", {2}), c = zeros("c", {1});
    load_weights(path, {a, b, c}, {.rename = {{"a", "x/a"}}});
    EXPECT_THAT(a.value().to_doubles(), ElementsAre(1.0));
    EXPECT_THAT(b.value().to_doubles(), ElementsAre(2.0, 3.0));
    EXPECT_THAT(c.value().to_doubles(), ElementsAre(4.0));
  }
}

TEST(LoadWeights, ReadsSingleFileInFolder) {
  const std::string folder = empty_folder();
  write(folder + "/model.safetensors", {{"a", numbers({7.0F})}});
  Variable a = zeros("a", {1});
  load_weights(folder, {a});
  EXPECT_THAT(a.value().to_doubles(), ElementsAre(7.0));
}

TEST(LoadWeights, ErrorNamesInvalidIndexEntry) {
  const std::string folder = write_sharded_model();
  const std::string index = folder + "/model.safetensors.index.json";
  const auto expect_refused = [&](const std::string& json, ErrorCode code,
                                  const std::vector<std::string>& words) {
    write_file_atomically(index, json);
    expect_error(code, words, [&] { load_weights(folder, {zeros("a", {1})}); });
  };
  expect_refused(R"({"weight_map": {"d": "model-00002-of-00002.safetensors"}})",
                 ErrorCode::kDataLoss, {"expected tensor 'd'", index, "got none"});
  expect_refused(R"({"weight_map": {"a": "model-00003.safetensors"}})", ErrorCode::kNotFound,
                 {folder + "/model-00003.safetensors"});
  expect_refused(R"({"weight_map": {"a": "../model.safetensors"}})", ErrorCode::kDataLoss,
                 {index, "a file in the folder of the index", "'../model.safetensors'"});
  expect_refused(R"({"weights": {}})", ErrorCode::kDataLoss, {index, "weight_map"});
  expect_refused(R"({"weight_map")", ErrorCode::kDataLoss, {index});
}

TEST(LoadWeights, RefusesFileWithoutMatchingVariables) {
  const std::string path = empty_folder() + "/w.safetensors";
  write(path, {{"fc.weight", numbers({1.0F})}});
  Variable a = zeros("dense/kernel", {1});
  EXPECT_INVALID(load_weights(path, {a}, {.strict = false}),
                 "none of the 1 variables is in " + path, "'fc.weight'", "'dense/kernel'",
                 ".rename");
}

TEST(LoadWeights, ErrorNamesActualFileFormat) {
  const std::string path = empty_folder() + "/w.safetensors";
  const auto expect_kind = [&](std::string_view bytes, const std::string& kind) {
    write_file_atomically(path, bytes);
    EXPECT_ERROR(load_weights(path, {zeros("a", {1})}), kDataLoss, path, "the file is ", kind);
  };
  expect_kind("", "an empty file");
  expect_kind("{\"a\": [1, 2, 3]}", "JSON");
  expect_kind("PK\x03\x04 and what follows it", "zip");
  expect_kind("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n",
              "Git LFS pointer");
  expect_kind("<!DOCTYPE html><html><body>Not found</body></html>", "HTML");
}

TEST(LoadWeights, ErrorNamesLayersWithDifferentShardCount) {
  const std::string path = empty_folder() + "/w.safetensors";
  write(path, {{"dense/kernel/part_0", numbers({1.0F, 2.0F})},
               {"dense/kernel/part_1", numbers({3.0F, 4.0F})}});
  const std::string rule = "a layer that is split over devices can only be restored over the same";
  const std::vector<Variable> three = {zeros("dense/kernel/part_0", {2}),
                                       zeros("dense/kernel/part_1", {1}),
                                       zeros("dense/kernel/part_2", {1})};
  EXPECT_INVALID(load_weights(path, three), "'dense/kernel': expected 3 parts, got 2 parts", rule);
  EXPECT_INVALID(load_weights(path, {zeros("dense/kernel", {4})}),
                 "'dense/kernel': expected one tensor, got 2 parts", rule);
  write(path, {{"dense/kernel", numbers({1.0F, 2.0F, 3.0F, 4.0F})}});
  EXPECT_INVALID(Checkpoint(three).restore(path),
                 "'dense/kernel': expected 3 parts, got one tensor", rule);
}

}  // namespace tutti::testing::safetensors_test
