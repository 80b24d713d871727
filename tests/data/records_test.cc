// Tests CSV, TFRecord and tf.train.Example files: conversion, round trips, published checksums, and
// errors.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/csv.h"

#include <cmath>

#include "core/file.h"
#include "data/csv_schema.h"
#include "data/input_file.h"
#include "tests/data/dataset_values.h"
#include "tests/support/warnings.h"
#include "tutti/data/records.h"

namespace tutti::testing::records_test {

std::string file_of(const std::string& bytes, const std::string& name = "a.csv") {
  const auto folder = std::filesystem::path(TempDir()) / "tutti_csv_test" /
                      UnitTest::GetInstance()->current_test_info()->name();
  std::filesystem::create_directories(folder);
  write_bytes((folder / name).string(), bytes);
  return (folder / name).string();
}

std::vector<std::vector<double>> component_of(const Dataset& dataset, const std::string& name) {
  std::vector<std::vector<double>> values;
  for (const Element& element : dataset) values.push_back(element.at(name).to_doubles());
  return values;
}

std::vector<std::vector<std::string>> records_of(internal::InputFile file,
                                                 internal::CsvDialect dialect = {}) {
  internal::CsvReader reader(std::move(file), dialect);
  internal::CsvRecord record;
  std::vector<std::vector<std::string>> records;
  while (reader.next(record)) records.push_back(record.fields());
  return records;
}

std::vector<std::vector<std::string>> records_of(const std::string& bytes,
                                                 internal::CsvDialect dialect = {}) {
  return records_of(internal::InputFile::of_bytes(bytes, "here"), dialect);
}

// The seeds were written by Python's csv.writer from this table.
TEST(CsvReader, ReadsFilesWrittenByPython) {
  const std::vector<std::vector<std::string>> table = {{"name", "x", "note"},
                                                       {"plain", "1", "a"},
                                                       {"comma, inside", "-2.5", "say \"hi\""},
                                                       {"two\nlines", "+3e2", ""},
                                                       {"", "0", "crlf\r\ninside"},
                                                       {" spaced ", "007", "\u00fcn\u00efcode"},
                                                       {"\"", "nan", "\"\""}};
  const std::filesystem::path seeds = std::filesystem::path(TUTTI_FUZZ_SEEDS) / "csv";
  for (const char* name : {"quoted.csv", "all_quoted.csv", "semicolons.csv"}) {
    internal::CsvDialect dialect;
    if (std::string(name) == "semicolons.csv") dialect.delimiter = ';';
    EXPECT_EQ(records_of(internal::InputFile((seeds / name).string()), dialect), table) << name;
  }
}

TEST(CsvReader, AcceptsEveryLineEndingAndDialect) {
  for (const char* bytes : {"a,b\n1,\n", "a,b\r\n1,\r\n", "a,b\r1,", "\n\na,b\n\r\n1,\"\"\n\n"}) {
    EXPECT_THAT(records_of(bytes), ElementsAre(ElementsAre("a", "b"), ElementsAre("1", "")));
  }
  EXPECT_THAT(records_of(""), ElementsAre());
  EXPECT_THAT(records_of("\"\"\n"), ElementsAre(ElementsAre("")));
  EXPECT_THAT(records_of("5\" disk\t\"x\"", {'\t', false}),
              ElementsAre(ElementsAre("5\" disk", "\"x\"")));
  EXPECT_THAT(records_of("1,  \"a, b\", c ", {',', true, true}),
              ElementsAre(ElementsAre("1", "a, b", "c ")));
}

TEST(CsvReader, RefusesMisplacedQuotesAndContinues) {
  internal::CsvReader reader(
      internal::InputFile::of_bytes("\"a\nb\",c\nd\"e,f\n\"g\"h\ni\n\"j\nk", "here"));
  internal::CsvRecord record;
  ASSERT_TRUE(reader.next(record));
  EXPECT_EQ(record.line(), 1);
  EXPECT_ERROR(reader.next(record), kDataLoss, "here:3: field 1", "inside a field",
               "write the field");
  EXPECT_ERROR(reader.next(record), kDataLoss, "here:4: field 1", "after a quoted field",
               "got byte 104");
  ASSERT_TRUE(reader.next(record));
  EXPECT_EQ(record[0], "i");
  EXPECT_EQ(record.line(), 5);
  EXPECT_ERROR(reader.next(record), kDataLoss, "here:6: field 1", "end of the file");
  EXPECT_FALSE(reader.next(record));
  EXPECT_ERROR(records_of("\xef\xbb"), kDataLoss, "UTF-8");
}

TEST(Csv, InfersTypesAndUsesColumnNamesForComponents) {
  const std::string path = file_of("id,score,label\n1,0.5,0\n-2,7,1\n9007199254740993, 1e3 ,1\n");
  const Dataset dataset = csv_dataset({path}, {.label_column = "label"});
  const Element first = *dataset.begin();
  EXPECT_THAT(first.names(), ElementsAre("id", "score", "label"));
  EXPECT_EQ(first.at("id").dtype(), DType::kInt64);
  EXPECT_EQ(first.at("score").dtype(), DType::kFloat32);
  EXPECT_EQ(first.at("label").shape(), Shape{});
  EXPECT_EQ(component_of(dataset, "score"), (std::vector<std::vector<double>>{{0.5}, {7}, {1000}}));
  auto elements = dataset.iterate();
  elements->skip(2);
  EXPECT_EQ(elements->next()->at("id").item_int(), 9007199254740993);
  EXPECT_FALSE(elements->next());
  EXPECT_EQ(dataset.cardinality(), std::nullopt);
}

TEST(Csv, SelectsColumnsByNameOrIndexWithLabelLast) {
  const std::string path = file_of("a,b,c,d\n1,2,3,4\n");
  const auto names = [&](CsvOptions options) {
    return csv_dataset({path}, options).begin()->names();
  };
  EXPECT_THAT(names({.label_column = "b"}), ElementsAre("a", "c", "d", "b"));
  EXPECT_THAT(names({.select_columns = {"d", "a"}}), ElementsAre("d", "a"));
  EXPECT_THAT(names({.select_indices = {2, 0}, .label_column = "b"}), ElementsAre("c", "a", "b"));
  EXPECT_THAT(names({.column_names = {"w", "x", "y", "z"}, .select_columns = {"x"}}),
              ElementsAre("x"));
  const std::string bare = file_of("1,2\n", "bare.csv");
  const Dataset second = csv_dataset({bare}, {.header = false, .select_indices = {1}});
  EXPECT_EQ(component_of(second, "column_1"), (std::vector<std::vector<double>>{{2}}));
}

TEST(Csv, PacksFeaturesIntoOneTensor) {
  const std::string path = file_of("age,sex,y\n22,male,0\n38.5,female,1\n");
  CsvOptions options{.label_column = "y", .pack_features = true};
  options.columns = {{.name = "sex", .vocabulary = {"male", "female"}}};
  const Dataset batches = csv_dataset({path}, options).batch(2);
  const Element batch = *batches.begin();
  EXPECT_THAT(batch.names(), ElementsAre("features", "labels"));
  EXPECT_EQ(batch[0].shape(), (Shape{2, 2}));
  EXPECT_EQ(batch[0].dtype(), DType::kFloat32);
  EXPECT_THAT(batch[0].to_doubles(), ElementsAre(22, 0, 38.5, 1));
  EXPECT_EQ(batch[1].dtype(), DType::kInt64);
  EXPECT_THAT(batch[1].to_doubles(), ElementsAre(0, 1));
}

TEST(Csv, ReadsEveryTypeAndMissingValues) {
  const std::string path = file_of(
      "f,d,i,l,u,b,c\n"
      "1.5,0.1,-7,5,255,true,x\n"
      "NA,,,NA,0,FALSE,\n"
      "inf,-1e300,+7,-9223372036854775808,3,1,zebra\n");
  CsvOptions options;
  options.na_values = {"", "NA"};
  options.columns = {{.name = "f", .dtype = DType::kFloat32, .default_value = NAN},
                     {.name = "d", .dtype = DType::kFloat64, .default_value = -1},
                     {.name = "i", .dtype = DType::kInt32, .default_value = 12},
                     {.name = "l", .dtype = DType::kInt64, .default_value = 13},
                     {.name = "u", .dtype = DType::kUInt8},
                     {.name = "b", .dtype = DType::kBool},
                     {.name = "c", .default_value = -2, .vocabulary = {"x"}, .unknown_value = -1}};
  const CsvTable table = read_csv({path}, options);
  EXPECT_EQ(table.rows.at("f").dtype(), DType::kFloat32);
  EXPECT_TRUE(std::isnan(table.rows.at("f").to_doubles()[1]));
  EXPECT_TRUE(std::isinf(table.rows.at("f").to_doubles()[2]));
  EXPECT_THAT(table.rows.at("d").to_doubles(), ElementsAre(0.1, -1, -1e300));
  EXPECT_THAT(table.rows.at("i").to_doubles(), ElementsAre(-7, 12, 7));
  EXPECT_EQ(table.rows.at("l").host_span<std::int64_t>()[2], INT64_MIN);
  EXPECT_THAT(table.rows.at("u").to_doubles(), ElementsAre(255, 0, 3));
  EXPECT_EQ(table.rows.at("b").dtype(), DType::kBool);
  EXPECT_THAT(table.rows.at("b").to_doubles(), ElementsAre(1, 0, 1));
  EXPECT_EQ(table.rows.at("c").dtype(), DType::kInt64);
  EXPECT_THAT(table.rows.at("c").to_doubles(), ElementsAre(0, -2, -1));
}

TEST(Csv, FloatsAreRoundedToNearest) {
  const CsvTable table = read_csv({file_of("x\n0.1\n1e-45\n1e-60\n16777217\n.5\n-.25e1\n")});
  const auto values = table.rows[0].host_span<float>();
  EXPECT_THAT(std::vector<float>(values.begin(), values.end()),
              ElementsAre(0.1f, 1e-45f, 0.0f, 16777216.0f, 0.5f, -2.5f));
}

TEST(Csv, Reads16BitFloatsAndRejectsValuesOutOfRange) {
  CsvOptions options;
  options.columns = {{.name = "h", .dtype = DType::kFloat16},
                     {.name = "b", .dtype = DType::kBFloat16}};
  const CsvTable table = read_csv({file_of("h,b\n65504,1e30\n0.1,inf\n")}, options);
  EXPECT_EQ(table.rows.at("h").dtype(), DType::kFloat16);
  EXPECT_THAT(table.rows.at("h").to_doubles(), ElementsAre(65504, 0x1.998p-4));
  EXPECT_TRUE(std::isinf(table.rows.at("b").to_doubles()[1]));
  EXPECT_INVALID(read_csv({file_of("h,b\n65520,1\n")}, options), ":2: column 'h'", "float16",
                 "'65520'");
}

// The training file determines the types and vocabularies of the other files.
TEST(Csv, ColumnsOfTrainingTableApplyToOtherFiles) {
  const std::string train = file_of("class,zip,y\nThird,01234,0\nFirst,99999,1\nThird,01234,1\n");
  const std::string test = file_of("class,zip,y\nFirst,01234,1\n", "test.csv");
  CsvOptions options{.label_column = "y"};
  options.columns = {{.name = "zip", .categorical = true}};
  const CsvTable table = read_csv({train}, options);
  EXPECT_THAT(table.rows.at("class").to_doubles(), ElementsAre(1, 0, 1));
  EXPECT_THAT(table.columns[0].vocabulary, ElementsAre("First", "Third"));
  EXPECT_THAT(table.columns[1].vocabulary, ElementsAre("01234", "99999"));
  options.columns = table.columns;
  const Dataset other = csv_dataset({test}, options);
  EXPECT_EQ(component_of(other, "class"), (std::vector<std::vector<double>>{{0}}));
  EXPECT_EQ(component_of(table.dataset(), "zip"),
            (std::vector<std::vector<double>>{{0}, {1}, {0}}));
  EXPECT_EQ(table.dataset().cardinality(), 3);
}

TEST(Csv, ReadsFilesInOrderAndResumesAtAnyPosition) {
  const std::string one = file_of("x,y\n1,2\n3,4\n"), none = file_of("x,y\n", "none.csv"),
                    two = file_of("x,y\n5,6\n", "two.csv");
  const Dataset dataset = csv_dataset({one, none, two});
  const std::vector<std::vector<double>> all = {{1}, {3}, {5}};
  EXPECT_EQ(component_of(dataset, "x"), all);
  for (std::int64_t start = 0; start <= 4; ++start) {
    auto elements = dataset.iterate();
    elements->skip(start);
    EXPECT_EQ(drain(*elements).size(),
              static_cast<std::size_t>(std::max<std::int64_t>(0, 3 - start)));
  }
}

TEST(Csv, RefusesInvalidFieldsAndContinues) {
  const std::string path = file_of("a,b\n1,x\n2\n3.5,y\n4,z\n,x\n5,\"x\n6,x\n");
  CsvOptions options;
  options.columns = {{.name = "a", .dtype = DType::kInt32},
                     {.name = "b", .vocabulary = {"x", "y"}}};
  auto elements = csv_dataset({path}, options).iterate();
  const auto next = [&] { elements->next(); };
  EXPECT_EQ(elements->next()->at("a").item_int(), 1);
  expect_error(ErrorCode::kDataLoss, {path + ":3", "expected 2 fields, got 1"}, next);
  expect_error(ErrorCode::kInvalidArgument, {path + ":4", "'a'", "expected int32, got '3.5'"},
               next);
  expect_error(ErrorCode::kInvalidArgument,
               {path + ":5", "'b'", "the 2 values", "got 'z'", "unknown_value"}, next);
  expect_error(ErrorCode::kInvalidArgument, {path + ":6", "'a'", "missing", "default_value"}, next);
  expect_error(ErrorCode::kDataLoss, {path + ":7", "field 2", "end of the file"}, next);
  EXPECT_FALSE(elements->next());
}

TEST(Csv, ErrorNamesRowsUsedForTypeInference) {
  const std::string path = file_of("a\n1\n2\n2.5\n");
  EXPECT_INVALID(rows_of(csv_dataset({path}, {.num_rows_for_inference = 2})), path + ":4",
                 "expected int64, got '2.5'", "first records", "CsvColumn::dtype");
  EXPECT_EQ(csv_dataset({path}).begin()->at("a").dtype(), DType::kFloat32);
  const std::string texts = file_of("a,b\n1,2\n3,4.5\n5,six\n7,eight\n");
  EXPECT_INVALID(csv_dataset({texts}), "column 'b' holds text, such as 'six' in line 4",
                 "expected numbers");
}

// The column is horsepower in the Auto MPG data set, where '?' marks a missing value.
TEST(Csv, WarnsAboutCategoricalColumnWithMostlyNumbers) {
  const std::string path = file_of("hp,mpg\n130,18\n165,15\n?,25\n90,31\n");
  const auto warnings = warnings_of(
      [&] { EXPECT_THAT(read_csv({path}).rows.at("hp").to_doubles(), ElementsAre(0, 1, 3, 2)); });
  ASSERT_EQ(warnings.size(), 1u);
  for (const char* part : {"read_csv", "'hp'", "'?' in line 4", "na_values", "categorical"}) {
    EXPECT_NE(warnings[0].find(part), std::string::npos) << part << " in " << warnings[0];
  }
  EXPECT_INVALID(read_csv({path}, {.pack_features = true}), "read_csv", "'hp'", "'?' in line 4",
                 "na_values");
  EXPECT_INVALID(csv_dataset({path}), "csv_dataset", "'hp'", "'?' in line 4", "na_values");
  // Applies both remedies that the warning suggests: numbers with a default, and an explicit
  // category.
  CsvOptions numbers{.pack_features = true, .na_values = {"?"}};
  numbers.columns = {{.name = "hp", .default_value = -1}};
  EXPECT_THAT(read_csv({path}, numbers).rows[0].to_doubles(),
              ElementsAre(130, 18, 165, 15, -1, 25, 90, 31));
  CsvOptions asked{.pack_features = true};
  asked.columns = {{.name = "hp", .categorical = true}};
  EXPECT_THAT(warnings_of([&] { read_csv({path}, asked); }), ElementsAre());
}

TEST(Csv, PacksTextColumnsOnlyIfCategorical) {
  const std::string path = file_of("age,sex,y\n22,male,0\n38,female,1\n");
  CsvOptions options{.label_column = "y", .pack_features = true};
  EXPECT_INVALID(read_csv({path}, options), "'sex'", "'male' in line 2", "categorical");
  options.columns = {{.name = "sex", .categorical = true}};
  EXPECT_THAT(read_csv({path}, options).rows[0].to_doubles(), ElementsAre(22, 1, 38, 0));
  // A text label is converted to a class number, which is a separate component and is not packed.
  const std::string flowers = file_of("x,kind\n1,rose\n2,lily\n", "flowers.csv");
  const CsvTable table = read_csv({flowers}, {.label_column = "kind", .pack_features = true});
  EXPECT_THAT(table.rows[1].to_doubles(), ElementsAre(1, 0));
  EXPECT_THAT(warnings_of([&] { read_csv({flowers}); }), ElementsAre());
}

TEST(Csv, ErrorNamesUnsupportedNumberFormat) {
  struct Form {
    const char* text;
    const char* name;
  };
  for (const Form& form :
       {Form{"1,5", "a decimal comma"}, Form{"-0,25", "a decimal comma"},
        Form{"1,234,567", "thousands separators"}, Form{"1.234,5", "thousands separators"},
        Form{"1'234.5", "thousands separators"}, Form{"12 000 000", "thousands separators"},
        Form{"1,234", "thousands separators or a decimal comma"}, Form{"$5.20", "a currency"},
        Form{"$1,200.50", "thousands separators"}, Form{"7 %", "a currency or percent sign"}}) {
    const std::string path = file_of(concat("x;y\n", form.text, ";1\n", form.text, ";2\n"));
    const CsvOptions options{.delimiter = ';'};
    EXPECT_INVALID(csv_dataset({path}, options), "'x'", form.text, form.name);
    const auto warnings = warnings_of([&] { read_csv({path}, options); });
    ASSERT_EQ(warnings.size(), 1u) << form.text;
    EXPECT_NE(warnings[0].find(form.name), std::string::npos) << warnings[0];
    CsvOptions typed = options;
    typed.columns = {{.name = "x", .dtype = DType::kFloat32}};
    EXPECT_INVALID(read_csv({path}, typed), path + ":2", form.text, form.name);
  }
  for (const char* text :
       {"red", "v1", "2020-01-05", "12:30", "1.2.3", "-", "", "$", "%", ",", "1,2,3", "abc,5"}) {
    EXPECT_EQ(internal::foreign_number_form(text), "") << text;
  }
}

TEST(Csv, ErrorSuggestsProbableDelimiter) {
  const std::string path = file_of("a;b;c\n1;2;3\n");
  EXPECT_INVALID(csv_dataset({path}), path + ":1", "one field 'a;b;c'", "delimiter ';'?");
  EXPECT_INVALID(read_csv({file_of("1\t2\n", "b.csv")}, {.header = false}), "delimiter '\\t'?");
  CsvOptions named{.header = false, .column_names = {"a", "b", "c"}};
  EXPECT_ERROR(read_csv({path}, named), kDataLoss, path + ":1", "expected 3 fields, got 1",
               "delimiter ';'?");
  // With an explicit name, a single text column may contain ';'.
  const CsvTable one = read_csv({path}, {.column_names = {"text"}});
  EXPECT_THAT(one.columns[0].vocabulary, ElementsAre("1;2;3"));
}

TEST(Csv, ErrorNamesActualFileFormat) {
  using namespace std::string_literals;
  const std::vector<std::pair<std::string, const char*>> others = {
      {"\xff\xfe"s + "a\0,\0b\0\n\0"s, "UTF-16"},
      {"\xfe\xff\0a\0,\0b\0\n"s, "UTF-16"},
      {"a\0,\0b\0\n\0"s, "UTF-16"},
      {"PK\x03\x04\x14\0\0\0"s, "a zip archive"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "a Git LFS pointer"},
      {"<!DOCTYPE html>\n<html>\n", "an HTML page"},
  };
  for (const auto& [bytes, kind] : others) {
    const std::string path = file_of(bytes);
    EXPECT_ERROR(csv_dataset({path}), kDataLoss, path + ":1", "expected a CSV file, got", kind);
    EXPECT_ERROR(read_csv({path}), kDataLoss, path + ":1", kind);
  }
}

struct Refused {
  const char* name;
  CsvOptions options;
  std::vector<std::string> parts;
};

class InvalidCsvOptions : public TestWithParam<Refused> {};

TEST_P(InvalidCsvOptions, AreRefusedBeforeReading) {
  const std::string path = empty_folder() + "/a.csv";
  write_bytes(path, "a,b,a b\n1,x,2\n");
  std::vector<std::string> parts = GetParam().parts;
  parts.push_back("csv_dataset");
  expect_error(ErrorCode::kInvalidArgument, parts,
               [&] { csv_dataset({path}, GetParam().options); });
}

CsvOptions only(CsvColumn column) {
  CsvOptions options;
  options.select_columns = {column.name};
  options.columns = {std::move(column)};
  return options;
}

INSTANTIATE_TEST_SUITE_P(
    Table, InvalidCsvOptions,
    Values(
        Refused{"TextsWithoutVocabulary", {}, {"'b' holds text", "vocabulary", "read_csv"}},
        Refused{"UnknownSelection",
                {.select_columns = {"A"}},
                {"'A'", "select_columns", "[a, b, a b]"}},
        Refused{"UnknownLabel", {.label_column = "y"}, {"'y'", "label_column", "[a, b, a b]"}},
        Refused{"UnknownColumn",
                {.select_columns = {"a"}, .columns = {{.name = "c"}}},
                {"'c'", "columns"}},
        Refused{"IndexTooLarge", {.select_indices = {3}}, {"from 0 to 2, got 3"}},
        Refused{"BothSelections", {.select_columns = {"a"}, .select_indices = {0}}, {"got both"}},
        Refused{"SelectedTwice", {.select_columns = {"a", "a"}}, {"twice"}},
        Refused{"NamesTwice", {.column_names = {"a", "a", "b"}}, {"'a' twice"}},
        Refused{"TooFewNames", {.column_names = {"a", "b"}}, {"expected 2 columns", "got 3"}},
        Refused{"QuoteAsDelimiter", {.delimiter = '"'}, {"delimiter"}},
        Refused{"NoInference", {.num_rows_for_inference = 0}, {"num_rows_for_inference"}},
        Refused{"LabelAlone",
                {.select_columns = {"a"}, .label_column = "a", .pack_features = true},
                {"only the label"}},
        Refused{"DefaultThatDoesNotFit",
                only({.name = "a", .dtype = DType::kUInt8, .default_value = 256}),
                {"'a'", "default_value of type uint8", "256"}},
        Refused{"NanAsInteger",
                only({.name = "a", .dtype = DType::kInt64, .default_value = NAN}),
                {"default_value of type int64", "nan"}},
        Refused{"CategoryWithType",
                only({.name = "b", .dtype = DType::kFloat32, .vocabulary = {"x"}}),
                {"expected int64 or no dtype for a category", "float32"}},
        Refused{"VocabularyTwice", only({.name = "b", .vocabulary = {"x", "x"}}), {"'x' twice"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Csv, RefusesMissingEmptyAndMismatchedFiles) {
  const std::string path = file_of("a,b\n1,2\n");
  const std::string other = file_of("a,c\n1,2\n", "other.csv");
  EXPECT_INVALID(rows_of(csv_dataset({path, other})), other + ":1",
                 "expected the columns [a, b] as in " + path, "got [a, c]");
  for (const char* const content : {"", "\n\n"}) {
    EXPECT_ERROR(csv_dataset({file_of(content, "empty.csv")}), kDataLoss, "empty.csv:1", "a header",
                 "empty file");
  }
  EXPECT_ERROR(csv_dataset({"/nowhere.csv"}), kNotFound, "csv_dataset: cannot read '/nowhere.csv'");
  EXPECT_ERROR(read_csv({"/nowhere.csv"}), kNotFound, "read_csv: cannot read '/nowhere.csv'");
  EXPECT_INVALID(csv_dataset({}), "at least one path");
  EXPECT_INVALID(read_csv({}), "at least one path");
}

// Check value of "123456789" from the catalogue of CRCs. The masked CRC is rotated by 15 bits; then
// TFRecord's constant is added.
TEST(Crc, MatchesPublishedValues) {
  EXPECT_EQ(internal::crc32("123456789"), 0xcbf43926u);
  EXPECT_EQ(internal::masked_crc32c("123456789"), 0xc78ab0e5u);
}

// Record whose CRCs were computed bit by bit in Python: struct.pack('<Q', 3), its masked CRC,
// b'abc', its masked CRC.
std::string record_abc() {
  return std::string("\003\000\000\000\000\000\000\000\260\231\111\016\141\142\143\156\127\361\041",
                     19);
}

std::vector<std::string> texts_of(const Dataset& dataset) {
  std::vector<std::string> texts;
  for (const Element& element : dataset) texts.emplace_back(bytes_of(element[0]));
  return texts;
}

TEST(TFRecord, WritesDocumentedFormat) {
  const std::string path = empty_folder() + "/a.tfrecord";
  TFRecordWriter writer(path);
  writer.write("abc");
  EXPECT_FALSE(std::filesystem::exists(path));
  writer.close();
  EXPECT_EQ(read_file(path), record_abc());
  EXPECT_ERROR(writer.write("x"), kFailedPrecondition, path, "closed");
}

TEST(TFRecord, RoundTrips) {
  const std::vector<std::string> records = {"first", "", std::string(100000, 'x'), "last"};
  const std::string path = empty_folder() + "/a.tfrecord";
  TFRecordWriter writer(path);
  for (const std::string& record : records) writer.write(record);
  writer.close();
  EXPECT_EQ(texts_of(tfrecord_dataset({path})), records);
}

TEST(TFRecord, ReadsFilesInOrderAndResumesAtAnyPosition) {
  const std::string folder = empty_folder();
  write_bytes(folder + "/1", record_abc() + record_abc());
  write_bytes(folder + "/2", "");
  write_bytes(folder + "/3", record_abc());
  const Dataset dataset = tfrecord_dataset({folder + "/1", folder + "/2", folder + "/3"});
  EXPECT_THAT(texts_of(dataset), ElementsAre("abc", "abc", "abc"));
  EXPECT_EQ(dataset.cardinality(), std::nullopt);
  for (std::int64_t start = 0; start <= 4; ++start) {
    auto elements = dataset.iterate();
    elements->skip(start);
    EXPECT_EQ(drain(*elements).size(),
              static_cast<std::size_t>(std::max<std::int64_t>(3 - start, 0)));
  }
  EXPECT_INVALID(tfrecord_dataset({}), "at least one path");
}

TEST(TFRecord, ErrorNamesRecordAndOffsetOfDamage) {
  const std::string path = empty_folder() + "/broken";
  const std::string good = record_abc();
  auto expect_refused = [&](const std::string& bytes, std::vector<std::string> parts) {
    write_bytes(path, bytes);
    parts.push_back(path);
    expect_error(ErrorCode::kDataLoss, parts, [&] { texts_of(tfrecord_dataset({path})); });
  };
  for (std::size_t length = 1; length < good.size(); ++length) {
    expect_refused(good + good.substr(0, length), {"record 1", "ends within", "offset"});
  }
  std::string wrong_length = good;
  wrong_length[0] ^= 1;
  expect_refused(wrong_length, {"record 0", "offset 8", "length's checksum", "expected", "got"});
  std::string wrong_data = good;
  wrong_data[12] ^= 1;
  expect_refused(good + wrong_data, {"record 1", "offset 34", "data's checksum"});
}

using Strings = std::vector<std::string>;
using Floats = std::vector<float>;
using Integers = std::vector<std::int64_t>;

// Example{features{feature{"a": int64_list [1, 300]}}}, encoded by hand as protobuf.
const std::string& packed_bytes() {
  static const std::string bytes =
      "\x0a\x0e\x0a\x0c\x0a\x01"
      "a\x12\x07\x1a\x05\x0a\x03\x01\xac\x02";
  return bytes;
}

TEST(Example, WritesSameBytesAsProtobuf) {
  EXPECT_EQ(serialize_example({{"a", Integers{1, 300}}}), packed_bytes());
  // 1.0f is 00 00 80 3f.
  EXPECT_EQ(serialize_example({{"f", Floats{1.0f}}}),
            std::string("\x0a\x0f\x0a\x0d\x0a\x01"
                        "f\x12\x08\x12\x06\x0a\x04\x00\x00\x80\x3f",
                        17));
  EXPECT_EQ(serialize_example({{"s", Strings{"xy"}}}),
            "\x0a\x0d\x0a\x0b\x0a\x01"
            "s\x12\x06\x0a\x04\x0a\x02xy");
}

TEST(Example, ReadsPackedAndUnpackedNumbers) {
  EXPECT_EQ(parse_example(packed_bytes(), "e"), (Example{{"a", Integers{1, 300}}}));
  const std::string unpacked =
      "\x0a\x0f\x0a\x0d\x0a\x01"
      "a\x12\x08\x1a\x06\x08\x01\x08\xac\x02\x01";
  const std::string good = unpacked.substr(0, unpacked.size() - 1);
  std::string exact = good;
  exact[1] = 0x0e;
  exact[3] = 0x0c;
  exact[8] = 0x07;
  exact[10] = 0x05;
  EXPECT_EQ(parse_example(exact, "e"), (Example{{"a", Integers{1, 300}}}));
}

TEST(Example, RoundTripsAndKeepsLastOfDuplicateNames) {
  const Example example = {{"", Integers{}},
                           {"floats", Floats{0.5f, -3.0f}},
                           {"integers", Integers{-1, INT64_MAX, INT64_MIN}},
                           {"none", Feature{}},
                           {"strings", Strings{"", std::string(300, 'x')}}};
  EXPECT_EQ(parse_example(serialize_example(example), "e"), example);
  const std::string two =
      serialize_example({{"a", Integers{1}}}) + serialize_example({{"a", Floats{2.0f}}});
  EXPECT_EQ(parse_example(two, "e"), (Example{{"a", Floats{2.0f}}}));
}

TEST(Example, RefusesTruncatedAndInvalidBytes) {
  for (std::size_t length = 1; length < packed_bytes().size(); ++length) {
    EXPECT_ERROR(parse_example(packed_bytes().substr(0, length), "file.tfrecord"), kDataLoss,
                 "file.tfrecord", "offset", "expected", "got");
  }
  EXPECT_ERROR(parse_example("\x0b", "e"), kDataLoss, "offset 0", "type 3");
  EXPECT_ERROR(parse_example(std::string(11, '\xff'), "e"), kDataLoss, "offset 0",
               "at most 10 bytes");
}

TEST(Example, ConvertsToElement) {
  const Example example = {
      {"image", Strings{"\x01\x02\x03\x04"}}, {"label", Integers{7}}, {"w", Floats{1, 2, 3}}};
  const Element element = element_of(example,
                                     {{"image", DType::kUInt8, Shape{2, 2}},
                                      {"label", DType::kInt64, Shape{}},
                                      {"w", DType::kFloat32},
                                      {"missing", DType::kFloat32, Shape{}, Tensor(5.0f)}},
                                     "e");
  EXPECT_THAT(element.names(), ElementsAre("image", "label", "w", "missing"));
  EXPECT_EQ(element.at("image").shape(), (Shape{2, 2}));
  EXPECT_THAT(element.at("image").to_doubles(), ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(element.at("label").item_int(), 7);
  EXPECT_THAT(element.at("w").to_doubles(), ElementsAre(1, 2, 3));
  EXPECT_EQ(element.at("missing").item(), 5.0f);
}

TEST(Example, RefusesMismatchedFeatures) {
  const Example example = {{"a", Integers{1, 2}}, {"s", Strings{"x", "y"}}};
  EXPECT_ERROR(element_of(example, {{"b", DType::kInt64}}, "e"), kNotFound, "e: ", "'b'", "[a, s]",
               "default_value");
  EXPECT_INVALID(element_of(example, {{"a", DType::kFloat32}}, "e"), "'a'", "a float_list",
                 "got an int64_list");
  EXPECT_INVALID(element_of(example, {{"a", DType::kInt64, Shape{3}}}, "e"), "'a'", "3 values",
                 "got 2");
  EXPECT_INVALID(element_of(example, {{"s", DType::kUInt8}}, "e"), "'s'", "one string, got 2");
}

}  // namespace tutti::testing::records_test
