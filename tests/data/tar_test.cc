// Tests tar files: those of Python and of tar, samples, round trips, every kind of damage.
// SPDX-License-Identifier: Apache-2.0
#include "tutti/data/tar.h"

#include <cstdlib>

#include "core/file.h"
#include "data/tar_reader.h"
#include "tests/data/dataset_values.h"
#include "tutti/data/records.h"

namespace tutti::tar_test {

using namespace data_test;
using testing::ElementsAre;
using testing::Pair;

internal::TarSampleReader samples_of_bytes(const std::string& bytes) {
  return internal::TarSampleReader(
      internal::TarReader(internal::InputFile::of_bytes(bytes, "here")));
}

std::vector<TarSample> samples_in(const std::string& bytes) {
  auto reader = samples_of_bytes(bytes);
  std::vector<TarSample> samples;
  while (auto sample = reader.next()) samples.push_back(std::move(*sample));
  return samples;
}

std::string seed(const std::string& name) {
  return read_file(std::string(TUTTI_FUZZ_SEEDS) + "/tar/" + name);
}

std::string written(const std::vector<std::pair<std::string, std::string>>& files) {
  const std::string path = empty_folder("written") + "/a.tar";
  TarWriter writer(path);
  for (const auto& [name, bytes] : files) writer.write(name, bytes);
  writer.close();
  return read_file(path);
}

// The seeds were written by Python's tarfile in its three formats.
TEST(Tar, ReadsTheFilesOfPythonAsSamples) {
  for (const char* name : {"ustar.tar", "gnu.tar", "pax.tar"}) {
    const std::vector<TarSample> samples = samples_in(seed(name));
    ASSERT_GE(samples.size(), 3u) << name;
    EXPECT_EQ(samples[0].key, "train/0001");
    EXPECT_THAT(samples[0].files, ElementsAre(Pair("cls", "7"), Pair("jpg", "\xff\xd8\xff picture"),
                                              Pair("seg.png", std::string(600, 'x'))));
    EXPECT_EQ(samples[1].key, "train/0002");
    EXPECT_THAT(samples[1].files, ElementsAre(Pair("cls", ""), Pair("jpg", std::string(512, 'y'))));
    EXPECT_THAT(samples[2].files, ElementsAre(Pair("cls", "3")));
  }
  std::string long_name = "a/";
  for (int i = 0; i < 40; ++i) long_name += "long_";
  EXPECT_EQ(samples_in(seed("gnu.tar"))[2].key, long_name + "name");
  EXPECT_EQ(samples_in(seed("pax.tar"))[2].key, long_name + "name");
  EXPECT_EQ(samples_in(seed("pax.tar"))[3].key, samples_in(seed("pax.tar"))[3].at("txt"));
  EXPECT_EQ(samples_in(seed("ustar.tar"))[2].key,
            std::string(90, 'p') + "/" + std::string(60, 'q'));
}

TEST(Tar, WritesWhatTheProgramTarReads) {
  ASSERT_EQ(std::system("tar --version > /dev/null"), 0) << "apt-get install tar";
  const std::string folder = empty_folder();
  const std::string long_name = std::string(60, 'd') + "/" + std::string(120, 'n') + ".txt";
  TarWriter writer(folder + "/a.tar");
  writer.write("one.txt", "first");
  writer.write(long_name, std::string(1000, 'z'));
  writer.write("empty.txt", "");
  writer.close();
  ASSERT_EQ(std::system(("tar -x -C '" + folder + "' -f '" + folder + "/a.tar'").c_str()), 0);
  EXPECT_EQ(read_file(folder + "/one.txt"), "first");
  EXPECT_EQ(read_file(folder + "/" + long_name), std::string(1000, 'z'));
  EXPECT_EQ(read_file(folder + "/empty.txt"), "");
  ASSERT_EQ(std::system(("cd '" + folder + "' && tar -c -f b.tar one.txt " + long_name).c_str()),
            0);
  const std::vector<TarSample> samples = samples_in(read_file(folder + "/b.tar"));
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples[0].at("txt"), "first");
  EXPECT_EQ(samples[1].at("txt"), std::string(1000, 'z'));
}

// The length of a pax record counts its own digits, which matters around 100 and 1000.
TEST(Tar, ReadsNamesOfEveryLengthThatItWrote) {
  for (std::size_t length : {1, 95, 96, 97, 98, 99, 100, 101, 985, 986, 987, 988, 989, 990, 3000}) {
    const std::string key(length, 'k');
    const std::vector<TarSample> samples = samples_in(written({{key + ".x", "content"}}));
    ASSERT_EQ(samples.size(), 1u);
    EXPECT_EQ(samples[0].key, key);
    EXPECT_EQ(samples[0].at("x"), "content");
  }
}

TEST(TarDataset, YieldsSamplesAsComponentsAndResumesAnywhere) {
  const std::string folder = empty_folder();
  for (int shard = 0; shard < 3; ++shard) {
    TarWriter writer(folder + "/" + std::to_string(shard));
    for (int i = 0; i < shard; ++i) {
      const std::string key = "s" + std::to_string(10 * shard + i);
      writer.write(
          TarSample{key, {{"bin", std::string(100000, static_cast<char>(i))}, {"cls", key}}});
    }
    writer.close();
  }
  const std::vector<std::string> paths = {folder + "/0", folder + "/1", folder + "/2"};
  const Dataset dataset = tar_dataset(paths);
  EXPECT_EQ(dataset.cardinality(), std::nullopt);
  std::vector<std::string> keys;
  for (const Element& element : dataset) {
    EXPECT_THAT(element.names(), ElementsAre("__key__", "bin", "cls"));
    EXPECT_EQ(element.at("bin").shape(), (Shape{100000}));
    EXPECT_EQ(element.at("bin").dtype(), DType::kUInt8);
    keys.emplace_back(bytes_of(element.at("cls")));
  }
  EXPECT_THAT(keys, ElementsAre("s10", "s20", "s21"));
  for (std::int64_t start = 0; start <= 4; ++start) {
    auto elements = dataset.iterate();
    elements->skip(start);
    EXPECT_EQ(data_test::drain(*elements).size(),
              static_cast<std::size_t>(std::max<std::int64_t>(0, 3 - start)));
  }
}

TEST(TarDataset, DecodesSamplesAlsoInParallelAndNamesTheOneThatFails) {
  const std::string path = empty_folder() + "/a.tar";
  TarWriter writer(path);
  for (int i = 0; i < 20; ++i) {
    writer.write(
        TarSample{"s" + std::to_string(i), {{i == 7 ? "other" : "cls", std::to_string(i)}}});
  }
  writer.close();
  const auto decode = [](const TarSample& sample) {
    return Element({number(std::stoi(sample.at("cls")))});
  };
  for (int calls : {1, 3}) {
    auto elements = tar_dataset({path}, decode, {.num_parallel_calls = calls}).iterate();
    for (int i = 0; i < 7; ++i) EXPECT_EQ(data_test::number_in(*elements->next()), i);
    EXPECT_ERROR(elements->next(), kNotFound, "sample 's7'", "no file 'cls'", "[other]");
    EXPECT_EQ(data_test::number_in(*elements->next()), 8);
    EXPECT_EQ(data_test::drain(*elements).size(), 11u);
  }
  EXPECT_INVALID(tar_dataset({path}, nullptr), "a function");
  EXPECT_INVALID(tar_dataset({}), "at least one path");
}

TEST(Tar, RefusesFilesThatAreCut) {
  const std::string good = written({{"a.x", std::string(600, 'a')}, {"b.x", "b"}});
  for (std::size_t length = 1; length <= 4 * 512; length += 73) {
    EXPECT_ERROR(samples_in(good.substr(0, length)), kDataLoss, "here", "offset", "ends",
                 "expected", "got");
  }
  // An archive cut between two files differs from a whole one only in the missing block of zeros.
  EXPECT_ERROR(samples_in(good.substr(0, 1536)), kDataLoss, "offset 1536", "ends early", "got 0");
  EXPECT_ERROR(samples_of_bytes(good.substr(0, 1300)).skip(9), kDataLoss, "offset 512",
               "within a file", "expected 1024 bytes, got 788");
  EXPECT_EQ(samples_in(good.substr(0, 5 * 512 + 512)).size(), 2u);
}

// Python's tarfile reports "empty file" for a file of 0 bytes.
TEST(Tar, NamesFilesOfOtherKinds) {
  const std::vector<std::pair<std::string, const char*>> others = {
      {"", "an empty file"},
      {std::string("PK\x03\x04\x14\0\0\0", 8) + std::string(600, 'x'), "a zip archive"},
      {"BZh91AY&SY" + std::string(600, 'x'), "a bzip2 file"},
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n", "a Git LFS pointer"},
      {"<!DOCTYPE html><html><body>404</body></html>" + std::string(600, ' '), "an HTML page"},
  };
  for (const auto& other : others) {
    EXPECT_ERROR(samples_in(other.first), kDataLoss, "here", "expected a tar file", other.second);
  }
  // An archive of only zero blocks is valid: it has no files.
  EXPECT_EQ(samples_in(std::string(10240, '\0')).size(), 0u);
}

// Made by cat a.tar b.tar or tar --concatenate; GNU tar reads them with --ignore-zeros.
TEST(Tar, ReadsConcatenatedArchives) {
  const std::string first = written({{"a.x", "1"}, {"b.x", "2"}}), second = written({{"c.x", "3"}});
  std::string keys;
  for (const TarSample& sample : samples_in(first + second + first)) {
    keys += sample.key + sample.at("x");
  }
  EXPECT_EQ(keys, "a1b2c3a1b2");
  EXPECT_EQ(samples_of_bytes(first + second).skip(9), 3);
  // Bytes behind the end that are not a header do not belong to the archive.
  EXPECT_EQ(samples_in(first + std::string(2000, 'z')).size(), 2u);
}

/// Returns `tar` with other bytes in its first header, and the matching checksum.
std::string with_header(std::string tar, std::size_t place, const std::string& bytes) {
  tar.replace(place, bytes.size(), bytes);
  tar.replace(148, 8, "        ");
  unsigned sum = 0;
  for (std::size_t i = 0; i < 512; ++i) sum += static_cast<unsigned char>(tar[i]);
  char text[9];
  std::snprintf(text, sizeof(text), "%06o", sum);
  tar.replace(148, 7, std::string(text) + '\0');
  return tar;
}

TEST(Tar, RefusesDamagedHeaders) {
  const std::string good = written({{"a.x", "content"}, {"b.x", "b"}});
  for (std::size_t place : {0, 5, 100, 130, 156, 257, 300, 511}) {
    std::string wrong = good;
    wrong[place] = static_cast<char>(wrong[place] + 1);
    EXPECT_ERROR(samples_in(wrong), kDataLoss, "here", "offset 148", "checksum", "expected", "got");
  }
  EXPECT_ERROR(samples_in(std::string(2000, '7')), kDataLoss, "is this a tar file?");
  EXPECT_ERROR(samples_in(with_header(good, 124, "0000000000x")), kDataLoss, "offset 124", "octal");
  EXPECT_ERROR(samples_in(with_header(good, 124, "77777777777")), kDataLoss, "offset 512",
               "within a file");
  const std::string huge = "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff";
  EXPECT_ERROR(samples_in(with_header(good, 124, huge)), kDataLoss, "offset 124", "2^62");
  EXPECT_EQ(samples_in(with_header(good, 0, "a.y"))[0].at("y"), "content");
}

TEST(Tar, ReadsSizesOfGnuInBytes) {
  std::string size("\x80", 1);
  size += std::string(10, '\0') + '\x07';
  const std::string tar = with_header(written({{"a.x", "content"}}), 124, size);
  EXPECT_EQ(samples_in(tar)[0].at("x"), "content");
}

TEST(Tar, RefusesKindsAndRecordsThatItDoesNotKnow) {
  const std::string good = written({{"a.x", "content"}});
  EXPECT_ERROR(samples_in(with_header(good, 156, "S")), kUnimplemented, "here", "offset 0",
               "sparse");
  EXPECT_ERROR(samples_in(with_header(good, 156, "M")), kUnimplemented, "part of one");
  EXPECT_ERROR(samples_in(with_header(good, 156, "x")), kDataLoss, "records", "pax");
  const auto pax = [](const std::string& records) {
    return samples_in(with_header(written({{"p", records}, {"a.x", "content"}}), 156, "x"));
  };
  EXPECT_EQ(pax("12 path=b.y\n")[0].at("y"), "content");
  EXPECT_EQ(pax("10 size=3\n")[0].at("x"), "con");
  EXPECT_EQ(pax("14 comment=me\n")[0].at("x"), "content");
  EXPECT_ERROR(pax("13 path=b.y\n"), kDataLoss, "pax");
  EXPECT_ERROR(pax("10 size=x\n"), kDataLoss, "size");
  EXPECT_ERROR(pax("22 GNU.sparse.major=1\n"), kUnimplemented, "sparse");
  EXPECT_ERROR(samples_in(with_header(written({{"p", "12 path=b.y\n"}}), 156, "x")), kDataLoss,
               "behind its name");
}

TEST(Tar, RefusesTwoFilesOfOneExtension) {
  EXPECT_ERROR(samples_in(written({{"a.x", "1"}, {"a.X", "2"}})), kDataLoss, "here", "offset 1024",
               "sample 'a'", "'a.X'", "'x' again");
}

TEST(TarWriter, RefusesNamesThatWouldNotComeBack) {
  const std::string path = empty_folder() + "/a.tar";
  TarWriter writer(path);
  for (const std::string& name : {std::string(), std::string("folder/"), std::string("a\0b", 3)}) {
    EXPECT_INVALID(writer.write(name, "x"), "TarWriter", "name of a file");
  }
  EXPECT_INVALID(writer.write(TarSample{"k", {}}), "with files", "'k'");
  for (const char* key : {"k.1", "", "folder/"}) {
    EXPECT_INVALID(writer.write(TarSample{key, {{"x", "1"}}}), "would not be read",
                   "without a dot");
  }
  EXPECT_INVALID(writer.write(TarSample{"k", {{"X", "1"}}}), "small letters");
  EXPECT_FALSE(std::filesystem::exists(path));
  writer.close();
  EXPECT_EQ(std::filesystem::file_size(path), 10240u);
  EXPECT_ERROR(writer.write("a", "x"), kFailedPrecondition, path, "closed");
}

}  // namespace tutti::tar_test
