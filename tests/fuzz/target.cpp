// A libFuzzer target for all code that processes the bytes of a file.
//
// Besides crashes, it checks exactness. The whole image has the pixels that libjpeg alone decodes,
// or libjpeg refuses it, too. If the whole image decodes, a crop has the same pixels, both of the
// file itself, also with its side index, and of the file as a baseline one.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "batch.h"
#include "to_baseline.h"

// Of all pixels and refusals since the start: FNV-1a.
uint64_t decoded_checksum = 0xcbf29ce484222325;

namespace {

using custom_op::Box;
using custom_op::Bytes;
using custom_op::RegionDecoder;

// Small, so that a false header costs no time and the limit is tested, too.
constexpr int64_t kMaxPixels = 1 << 16;
constexpr int64_t kSize = 24;

void add_to_checksum(const void* data, size_t size) {
  const auto* const bytes = static_cast<const uint8_t*>(data);
  for (size_t i = 0; i < size; ++i)
    decoded_checksum = (decoded_checksum ^ bytes[i]) * 0x100000001b3;
}

void add_to_checksum(bool decodes) { add_to_checksum(&decodes, 1); }

// Collects rows in memory of exactly their size.
class Pixels final : public custom_op::RowSink {
 public:
  explicit Pixels(const Box& box)
      : row_bytes_(static_cast<size_t>(box.width) * 3),
        values(row_bytes_ * static_cast<size_t>(box.height)) {}
  void begin() override { at_ = 0; }
  uint8_t* next() override { return values.data() + at_; }
  void written() override { at_ += row_bytes_; }

 private:
  size_t row_bytes_, at_ = 0;

 public:
  std::vector<uint8_t> values;
};

bool decode(Bytes jpeg, const Box& box, std::vector<uint8_t>& pixels, Bytes side_index = {},
            bool only_libjpeg = false) {
  static RegionDecoder decoder;
  Pixels sink(box);
  try {
    decoder.open(jpeg, kMaxPixels, side_index);
    decoder.decode(box, sink, only_libjpeg);
  } catch (const custom_op::JpegError&) {
    add_to_checksum(false);
    return false;
  }
  pixels = std::move(sink.values);
  add_to_checksum(pixels.data(), pixels.size());
  return true;
}

void require(bool condition, int line = __builtin_LINE()) {
  if (condition) return;
  std::fprintf(stderr, "target.cpp:%d: check failed\n", line);
  std::abort();
}

// Takes the box from the last bytes of the input, so that the fuzzer controls it.
Box choose_box(Bytes jpeg, int64_t height, int64_t width) {
  uint8_t seed[8] = {};
  for (size_t i = 0; i < 8 && i < jpeg.size; ++i) seed[i] = jpeg.data[jpeg.size - 1 - i];
  const auto pick = [&](int i, int64_t limit) { return (seed[i] << 8 | seed[i + 1]) % limit; };
  const int64_t crop_height = 1 + pick(0, height), crop_width = 1 + pick(2, width);
  return {pick(4, height - crop_height + 1), pick(6, width - crop_width + 1), crop_height,
          crop_width};
}

void check_crop(const std::vector<uint8_t>& whole, int64_t width, const Box& box,
                const std::vector<uint8_t>& crop) {
  const size_t bytes = static_cast<size_t>(box.width) * 3;
  require(crop.size() == bytes * static_cast<size_t>(box.height));
  for (int64_t y = 0; y < box.height; ++y) {
    const uint8_t* expected = whole.data() + ((box.top + y) * width + box.left) * 3;
    require(std::memcmp(expected, crop.data() + static_cast<size_t>(y) * bytes, bytes) == 0);
  }
}

// Only a sound file becomes a baseline one, with the same pixels.
void check_baseline(Bytes jpeg, const Box& box, const std::vector<uint8_t>* expected) {
  std::vector<uint8_t> baseline, crop;
  try {
    baseline = custom_op::to_baseline(jpeg, kMaxPixels);
  } catch (const custom_op::JpegError&) {
    return;
  }
  const bool was_baseline =
      std::equal(baseline.begin(), baseline.end(), jpeg.data, jpeg.data + jpeg.size);
  if (was_baseline) return;
  require(expected != nullptr && decode({baseline.data(), baseline.size()}, box, crop));
  require(crop == *expected);
}

// Returns whether the image decodes.
bool check_whole(Bytes jpeg, const Box& box) {
  std::vector<uint8_t> pixels, reference;
  const bool decodes = decode(jpeg, box, pixels);
  require(decode(jpeg, box, reference, {}, /*only_libjpeg=*/true) == decodes);
  require(pixels == reference);
  return decodes;
}

// A table of two operations. The fuzzer chooses them and their parameters; those that the operator
// refuses are left as identity.
std::vector<float> choose_operations(Bytes jpeg) {
  using custom_op::kOperationColumns;
  constexpr float kValues[] = {0, 1, 2, 3, 5, 7, 9, 16, 24, 47, 255, 0.5F, -0.5F, 0.3F, -17, 1e30F};
  constexpr int kParameters[] = {0, 1, 1, 1, 1, 1, 0, 2, 1, 1, 0, 0, 0, 5, 5, 5, 5, 5, 7, 7};
  std::vector<float> table(2 * kOperationColumns);
  size_t at = jpeg.size;
  const auto draw = [&](size_t limit) { return at > 0 ? jpeg.data[--at] % limit : 0; };
  for (int64_t row = 0; row < 2; ++row) {
    float* const values = table.data() + row * kOperationColumns;
    const size_t number = draw(std::size(kParameters));
    values[0] = static_cast<float>(number);
    for (int i = 1; i <= kParameters[number]; ++i) values[i] = kValues[draw(std::size(kValues))];
    if (!custom_op::operation_problem(values, kSize).empty()) {
      std::fill_n(values, kOperationColumns, 0.F);
    }
  }
  return table;
}

// All views of a file are those of a call of their own, also after a view that fails.
void check_batch(Bytes jpeg, const Box& box, const Box& everything, uint8_t choice) {
  static custom_op::ImageWorker worker;
  static std::vector<uint8_t> out(3 * kSize * kSize);
  // By pixel, or planar.
  const custom_op::Slot slot = choice & 2
                                   ? custom_op::Slot{out.data(), kSize, kSize * kSize, kSize, 1}
                                   : custom_op::Slot{out.data(), kSize, 1, 3 * kSize, 3};
  const std::vector<float> table = choose_operations(jpeg);
  const auto operations = custom_op::read_operations(table.data(), (choice & 32) != 0 ? 2 : 0);
  const auto cut = [&](const Box& view) {
    std::fill(out.begin(), out.end(), uint8_t{0});
    try {
      worker.cut(view, (choice & 16) != 0, operations, slot);
      add_to_checksum(out.data(), out.size());
      return true;
    } catch (const custom_op::JpegError&) {
      add_to_checksum(false);
      return false;
    }
  };
  worker.open(jpeg, {}, kMaxPixels);
  const bool alone = cut(box);
  const std::vector<uint8_t> expected = out;
  worker.open(jpeg, {}, kMaxPixels);
  cut(everything);
  require(cut(box) == alone);
  require(!alone || out == expected);
}

// The index that is made while the box is decoded, or without any crop. The share is one that
// leaves room for all entries of such small files, or for some.
std::vector<uint8_t> make_index(RegionDecoder& decoder, Bytes jpeg, const Box* box) {
  decoder.open(jpeg, kMaxPixels);
  decoder.record_side_index(jpeg.size % 2 == 0 ? 2 : 0.2);
  if (box != nullptr) {
    Pixels sink(*box);
    decoder.decode(*box, sink);
  }
  return decoder.finish_side_index();
}

// A crop decoded with a side index has the same pixels, also if the index is damaged.
void check_side_index(RegionDecoder& decoder, Bytes jpeg, const Box& box,
                      const std::vector<uint8_t>* expected) {
  std::vector<uint8_t> index = make_index(decoder, jpeg, nullptr);
  if (expected != nullptr) {
    require(make_index(decoder, jpeg, &box) == index);
  }
  if (index.empty()) return;
  std::vector<uint8_t> crop;
  const bool decodes = decode(jpeg, box, crop, {index.data(), index.size()});
  if (expected != nullptr) require(decodes && crop == *expected);
  const uint8_t* const seed = jpeg.data + jpeg.size - 4;
  index[(seed[0] << 8 | seed[1]) % index.size()] ^= seed[2];
  const Bytes damaged{index.data(), index.size() - (seed[3] == 0 ? 1 : 0)};
  const bool still_decodes = decode(jpeg, box, crop, damaged);
  if (expected != nullptr) require(still_decodes && crop == *expected);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const Bytes jpeg{data, size};
  RegionDecoder decoder;
  int64_t height, width;
  try {
    decoder.open(jpeg, kMaxPixels);
    height = decoder.height();
    width = decoder.width();
    require(decoder.orientation() >= 1 && decoder.orientation() <= 8);
  } catch (const custom_op::JpegError&) {
    return 0;
  }
  const Box box = choose_box(jpeg, height, width);
  std::vector<uint8_t> whole, crop;
  const Box everything{0, 0, height, width};
  const bool whole_decodes = check_whole(jpeg, everything);
  decode(jpeg, everything, whole);
  const bool crop_decodes = decode(jpeg, box, crop);
  require(crop_decodes || !whole_decodes);
  if (whole_decodes) check_crop(whole, width, box, crop);

  check_side_index(decoder, jpeg, box, whole_decodes ? &crop : nullptr);
  check_batch(jpeg, box, everything, size > 8 ? data[size - 9] : 0);
  check_baseline(jpeg, box, whole_decodes ? &crop : nullptr);
  return 0;
}
